"""The base of every configuration value: frozen, closed to unknown fields, the same thing in JSON and in memory."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainValidator,
    WithJsonSchema,
    field_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

MAX_INTEGER = 2**53
"""No number of steps or bytes is larger; databases, messages and JavaScript could not hold it."""


class Value(BaseModel):
    """A frozen pydantic model that refuses fields it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings", validate_default=True)

    @field_validator("*", mode="after")
    @classmethod
    def _bounded(cls, value: Any) -> Any:
        numbers = value if isinstance(value, tuple) else (value,)
        if any(isinstance(number, int) and abs(number) > MAX_INTEGER for number in numbers):
            raise ValueError("a whole number must be between -2**53 and 2**53")
        return value


def whole(number: float) -> int:
    """Return the largest whole number not above `number`, where 0.29 * 100 counts as 29."""
    return math.floor(number + 1e-9 * max(1.0, abs(number)))


def _threshold(value: Any) -> float | Literal["auto"]:
    if value == "auto":
        return "auto"
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not number >= 0:
        raise ValueError("must be a number greater than or equal to 0, inf, or auto")
    return number


Threshold = Annotated[
    float | Literal["auto"],
    PlainValidator(_threshold),
    WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0}, {"enum": ["Infinity", "auto"]}]}),
]
"""A number >= 0 that may be infinite, which JSON can only spell as a word; or `auto`."""


class Shape:
    """Marks text that must look a certain way: the schema has the regular expression, a person is told the sentence."""

    def __init__(self, regex: str, sentence: str) -> None:
        self._regex, self._sentence = regex, sentence

    def check(self, text: str) -> str:
        """Return the text, or raise what pydantic turns into a problem of its field."""
        if re.fullmatch(self._regex, text) is None:
            raise PydanticCustomError("shape", "{sentence}", {"sentence": self._sentence})
        return text

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "pattern": f"^{self._regex}$"}

"""The base of every configuration value: frozen, closed to unknown fields, the same thing in JSON and in memory."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema


class Value(BaseModel):
    """A frozen pydantic model that refuses fields it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings", validate_default=True)


def _infinity(value: Any) -> Any:
    return math.inf if value in ("inf", "Infinity") else value


Threshold = Annotated[
    float,
    BeforeValidator(_infinity),
    WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0}, {"const": "Infinity"}]}),
]
"""A number >= 0 that may be infinite, which JSON can only spell as a word."""

"""One request as a value: what to send, and what comes back; and the error the service answers with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import TypeAdapter

from raysync.errors import RaysyncError

T = TypeVar("T")


class Call(NamedTuple, Generic[T]):
    """One request."""

    method: str
    path: str
    kind: Any
    """The type of the answer; str for plain text, None for no answer."""
    params: Mapping[str, Any] = {}
    json: Any = None
    content: bytes | None = None
    headers: Mapping[str, str] = {}
    may_repeat: bool = True
    """Whether it does no harm to send it again when no answer came."""

    def read(self, status: int, body: bytes) -> T:
        """Return the answer, or raise the problem it tells of."""
        if status >= 400:
            raise ApiError.of(status, body)
        if self.kind is None or self.kind is str:
            return body.decode() if self.kind is str else None  # type: ignore[return-value]
        return TypeAdapter(self.kind).validate_json(body)  # type: ignore[no-any-return]


class ApiError(RaysyncError):
    """The service refused; `type` is stable, `detail` says what to do."""

    def __init__(self, status: int, type: str, detail: str, errors: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(status, type, detail, errors)
        self.status, self.type, self.detail, self.errors = status, type, detail, errors

    def __str__(self) -> str:
        fields = "".join(f"\n  {field}: {message}" for field, message in self.errors)
        return f"{self.detail if not fields else 'the service refused:'}{fields}"

    @classmethod
    def of(cls, status: int, body: bytes) -> ApiError:
        """Return the error an answer tells of, whatever it looks like."""
        try:
            found = json.loads(body)
            fields = tuple((str(entry["field"]), str(entry["message"])) for entry in found.get("errors", ()))
            return cls(status, str(found["type"]), str(found["detail"]), fields)
        except (ValueError, KeyError, TypeError, AttributeError):
            return cls(status, "about:blank", f"the service answered {status}: {body[:200].decode(errors='replace')}")

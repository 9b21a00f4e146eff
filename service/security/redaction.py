"""What no answer, event or log line may tell: tokens, credentials in addresses, values in a database's complaints."""

from __future__ import annotations

import re
from typing import Any

_HIDDEN = "[hidden]"
_TOKEN = re.compile(r"rs_[0-9a-f]{8}_[A-Za-z0-9_-]{20,}")
_USER = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^/\s'\"<>]*@")
"""Name and password before the host of a URI; a password may hold an @ itself."""
_QUERY = re.compile(
    r"([?&][\w.-]*(?:key|secret|token|passw|signature|credential|sig)[\w.-]*=)[^&\s'\"#<>]+", re.IGNORECASE
)
_DATABASE_DETAIL = re.compile(r"(?m)^((?:DETAIL|CONTEXT):\s).*$")
"""PostgreSQL tells the values of the row it complains about."""


def redacted(text: str) -> str:
    """Return text without what is secret, should it have got into it."""
    if "rs_" in text:
        text = _TOKEN.sub(f"rs_{_HIDDEN}", text)
    if "://" in text:
        text = _QUERY.sub(rf"\1{_HIDDEN}", _USER.sub(rf"\1{_HIDDEN}@", text))
    return text


def redacted_values(value: Any) -> Any:
    """Return a value as JSON has it, redacted wherever it holds text."""
    match value:
        case str():
            return redacted(value)
        case dict():
            return {name: redacted_values(found) for name, found in value.items()}
        case list() | tuple():
            return [redacted_values(found) for found in value]
        case _:
            return value


def redacted_log(text: str) -> str:
    """Return what goes into the service's own log: also without the values a database complains about."""
    return redacted(_DATABASE_DETAIL.sub(rf"\1{_HIDDEN}", text))

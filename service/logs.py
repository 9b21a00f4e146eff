"""The service's own log: a line of JSON per record, or plain text for a terminal, with request and job ids."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from contextvars import ContextVar
from typing import Any

from service.security.redaction import redacted, redacted_log

request_id: ContextVar[str] = ContextVar("request_id", default="")

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_PLAIN = set(logging.LogRecord("", 0, "", 0, "", (), None).__dict__) | {
    "message",
    "asctime",
    "taskName",
    "color_message",
}


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    found = {name: value for name, value in record.__dict__.items() if name not in _PLAIN}
    return {**({"request_id": request_id.get()} if request_id.get() else {}), **found}


class JsonLines(logging.Formatter):
    """One JSON object per record."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        line = {"time": stamp, "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
        if record.exc_info:
            line["traceback"] = redacted_log(self.formatException(record.exc_info))
        return redacted(json.dumps({**line, **_extras(record)}, default=str))


class Plain(logging.Formatter):
    """One readable line per record."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        stamp = time.strftime("%H:%M:%S", time.localtime(record.created))
        extras = " ".join(f"{name}={value}" for name, value in _extras(record).items() if name != "request_id")
        text = f"{stamp} {record.levelname.lower():<7} {record.getMessage()}{f'  [{extras}]' if extras else ''}"
        text = _CONTROL.sub(lambda found: repr(found.group())[1:-1], text)  # a request must not write our log
        if record.exc_info:
            text += "\n" + redacted_log(self.formatException(record.exc_info))
        return redacted(text)


def configure(format: str) -> None:
    """Send all of this process's log to stderr; called where the service is started."""
    as_text = format == "text" or (format == "auto" and sys.stderr.isatty())
    handler = logging.StreamHandler()
    handler.setFormatter(Plain() if as_text else JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    for noisy in ("uvicorn.access", "alembic", "httpx2"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    for name in ("uvicorn", "uvicorn.error"):
        logging.getLogger(name).handlers[:] = []
        logging.getLogger(name).propagate = True

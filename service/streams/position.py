"""Where a reader of many jobs is, as text: the id of each message of its stream, to go on from."""

from __future__ import annotations

import base64
import binascii
import json
import re
import zlib
from typing import Any

import msgspec

MAX_CHARS = 24_000
_MAX_BYTES = 1 << 20
_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")


class Position(msgspec.Struct):
    """The last event had of each job, the last change of each study, and when that was."""

    begun_s: float
    """When the stream was first asked for."""
    time_s: float
    """When this was so."""
    jobs: dict[str, int] = {}
    studies: dict[str, int] = {}
    has_ended: bool = False

    def text(self) -> str:
        """Return it as text."""
        found = [round(self.begun_s, 3), round(self.time_s, 3), self.jobs, self.studies, self.has_ended]
        packed = zlib.compress(json.dumps(found, separators=(",", ":")).encode(), 1)
        return base64.urlsafe_b64encode(packed).decode().rstrip("=")


def read_position(text: str) -> Position:
    """Return what a text stands for; raise `ValueError` if it stands for nothing."""
    try:
        packed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        unpacked = zlib.decompressobj().decompress(packed, _MAX_BYTES)
        values = zip(Position.__struct_fields__, json.loads(unpacked), strict=True)
        found = msgspec.convert(dict(values), Position)
    except (binascii.Error, zlib.error, ValueError, TypeError, RecursionError, msgspec.ValidationError) as error:
        raise ValueError("it is no position of a stream") from error
    for name, number in (*found.jobs.items(), *found.studies.items()):
        if not _ID.fullmatch(name) or not -1 <= number <= 2**53:
            raise ValueError("it is no position of a stream")
    if not 0 <= min(found.begun_s, found.time_s) <= max(found.begun_s, found.time_s) < 1e12:
        raise ValueError("it is no position of a stream")
    return found


def message(kind: str, data: Any, position: Position | None) -> bytes:
    """Return a server-sent event; `data` that is text is JSON already."""
    text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
    id = f"id: {position.text()}\n" if position is not None else ""
    return f"{id}event: {kind}\ndata: {text}\n\n".encode()

"""Messages as bytes: a msgpack head and, apart from it, the payload, cut into parts so that none is huge.

The head says which core it is for, which message it is, and how much payload follows. Nothing here runs code on
behalf of the sender: msgspec makes only the types of `AnyMessage`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from actors.link.base import Envelope
from raysync.engine import messages as m
from raysync.errors import PayloadError

PART_BYTES = 1 << 20
_INLINE_BYTES = 4096
_MAX_BYTES = 1 << 30

Buffer = bytes | memoryview


class _Head(msgspec.Struct, frozen=True, array_like=True):
    to: str
    total: int
    """Bytes of payload that travel outside the message."""
    message: m.AnyMessage


class Frame(NamedTuple):
    """What goes on the wire as one piece; a frame without head continues the message before it."""

    head: bytes
    body: Buffer


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Head).decode


def to_frames(to: str, message: m.Message) -> Iterator[Frame]:
    """Yield the frames of a message; large payloads are not copied."""
    payload: Buffer = getattr(message, "payload", b"")
    if len(payload) <= _INLINE_BYTES:
        yield Frame(_encode(_Head(to, 0, message)), b"")  # type: ignore[arg-type]
        return
    bare = msgspec.structs.replace(message, payload=b"")
    view = memoryview(payload)
    yield Frame(_encode(_Head(to, len(view), bare)), view[:PART_BYTES])  # type: ignore[arg-type]
    for start in range(PART_BYTES, len(view), PART_BYTES):
        yield Frame(b"", view[start : start + PART_BYTES])


class Assembler:
    """Puts the frames of one sender together again; raises `PayloadError` for what no sender of ours writes."""

    def __init__(self) -> None:
        self._head: _Head | None = None
        self._buffer = bytearray()
        self._filled = 0

    def feed(self, head: bytes, body: Buffer) -> Envelope | None:
        """Take in a frame; return the message it completes, if it does."""
        if head:
            return self._begin(head, body)
        if self._head is None or self._filled + len(body) > self._head.total:
            raise PayloadError("a part that belongs to no message")
        self._buffer[self._filled : self._filled + len(body)] = body
        self._filled += len(body)
        if self._filled < self._head.total:
            return None
        head_of, payload = self._head, self._buffer
        self._head, self._buffer = None, bytearray()
        return _envelope(head_of, memoryview(payload))

    def _begin(self, packed: bytes, body: Buffer) -> Envelope | None:
        try:
            head = _decode(packed)
        except msgspec.MsgspecError as error:
            raise PayloadError(f"not a message: {error}") from error
        if head.total == 0 and not body:
            return Envelope(head.to, head.message)
        if not hasattr(head.message, "payload") or not 0 < len(body) <= head.total <= _MAX_BYTES:
            raise PayloadError(f"{len(body)} of {head.total} payload bytes with {type(head.message).__name__}")
        if len(body) == head.total:
            return _envelope(head, memoryview(body))
        self._head, self._buffer, self._filled = head, bytearray(head.total), len(body)
        self._buffer[: len(body)] = body
        return None


def _envelope(head: _Head, payload: memoryview) -> Envelope:
    # The payload stays where it arrived; decoders read any buffer.
    msgspec.structs.force_setattr(head.message, "payload", payload)
    return Envelope(head.to, head.message)

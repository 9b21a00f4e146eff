"""Messages as bytes: a msgpack head and, apart from it, the payload, cut into parts so that none is huge.

The head says which core it is for, which message it is, and how much payload follows. Nothing here runs code on
behalf of the sender: msgspec makes only the types of `AnyMessage`.

Large payloads have no checksum of their own. Between machines the direct link's encryption authenticates every frame,
and between processes of one machine nothing is transmitted; Ray's calls are plain TCP, so there a body is `sealed`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import xxhash

from actors.link.base import Envelope
from raysync.address import Address
from raysync.blocks import LARGEST_BYTES
from raysync.engine import messages as m
from raysync.errors import PayloadError

PART_BYTES = LARGEST_BYTES + 4096
"""A block of the largest default size goes in one piece: it needs not be put together."""
_INLINE_BYTES = 4096
_MAX_BYTES = 1 << 30

Buffer = bytes | memoryview


class _Head(msgspec.Struct, frozen=True, array_like=True):
    sender: Address
    to: Address
    total: int
    """Bytes of payload that travel outside the message."""
    message: m.AnyMessage | None
    """None in a part that continues the message before it."""
    seal: int | None = None
    """The checksum of the body, where the transport has none."""


class Frame(NamedTuple):
    """What goes on the wire as one piece."""

    head: bytes
    body: Buffer


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Head).decode


def to_frames(sender: Address, to: Address, message: m.Message, is_sealed: bool = False) -> Iterator[Frame]:
    """Yield the frames of a message; large payloads are not copied."""
    payload: Buffer = getattr(message, "payload", b"")
    if len(payload) <= (0 if is_sealed else _INLINE_BYTES):
        yield Frame(_encode(_Head(sender, to, 0, message)), b"")  # type: ignore[arg-type]
        return
    view = memoryview(payload)
    said: m.AnyMessage | None = msgspec.structs.replace(message, payload=b"")  # type: ignore[assignment]
    for start in range(0, len(view), PART_BYTES):
        body = view[start : start + PART_BYTES]
        seal = xxhash.xxh3_64_intdigest(body) if is_sealed else None
        yield Frame(_encode(_Head(sender, to, 0 if start else len(view), said, seal)), body)
        said = None


def encoded(message: m.Message) -> bytes:
    """Return a message without a payload as bytes, for `whole_head`: encoded once, it goes to many."""
    return _encode(message)


def whole_head(sender: Address, to: Address, message: bytes) -> bytes:
    """Return the one frame of such a message."""
    return _encode((sender, to, 0, msgspec.Raw(message)))


class Assembler:
    """Puts frames together again, whoever they come from; raises `PayloadError` for what no sender of ours writes."""

    def __init__(self) -> None:
        self._open: dict[tuple[Address, Address], _Open] = {}
        """By sender and receiver: each pair has a line of its own, so their parts come in order."""

    def feed(self, packed: Buffer, body: Buffer) -> Envelope | None:
        """Take in a frame; return the message it completes, if it does."""
        try:
            head = _decode(packed)
        except msgspec.MsgspecError as error:
            raise PayloadError(f"not a message: {error}") from error
        if head.seal is not None and head.seal != xxhash.xxh3_64_intdigest(body):
            raise PayloadError("the checksum does not match: it was damaged on the way")
        if head.message is None:
            return self._continue((head.sender, head.to), body)
        if head.total == 0 and not body:
            return Envelope(head.to, head.message)
        if not hasattr(head.message, "payload") or not 0 < len(body) <= head.total <= _MAX_BYTES:
            raise PayloadError(f"{len(body)} of {head.total} payload bytes with {type(head.message).__name__}")
        if len(body) == head.total:
            return _envelope(head.to, head.message, memoryview(body))
        self._open[head.sender, head.to] = _Open(head.to, head.message, bytearray(head.total))
        return self._continue((head.sender, head.to), body)

    def _continue(self, line: tuple[Address, Address], body: Buffer) -> Envelope | None:
        open_message = self._open.get(line)
        if open_message is None or not open_message.add(body):
            raise PayloadError("a part that belongs to no message")
        if open_message.filled < len(open_message.buffer):
            return None
        del self._open[line]
        return _envelope(open_message.to, open_message.message, memoryview(open_message.buffer))


class _Open:
    """A message of which parts are still to come."""

    def __init__(self, to: Address, message: m.Message, buffer: bytearray) -> None:
        self.to, self.message, self.buffer, self.filled = to, message, buffer, 0

    def add(self, body: Buffer) -> bool:
        end = self.filled + len(body)
        if end > len(self.buffer):
            return False
        self.buffer[self.filled : end] = body
        self.filled = end
        return True


def _envelope(to: Address, message: m.Message, payload: memoryview) -> Envelope:
    # The payload stays where it arrived; decoders read any buffer.
    msgspec.structs.force_setattr(message, "payload", payload)
    return Envelope(to, message)

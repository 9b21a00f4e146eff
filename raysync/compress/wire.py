"""The envelope of every payload: a little-endian header that says all a receiver must know, and a checksum over
the rest.

magic 2s | version u8 | codec u8 | element count u32 | body length u32 | checksum u32

The checksum is the low half of xxh3-64 over the first 12 bytes and the body. A checksum of 0 says that there is none:
links see to it that what they hand over is what was sent, so a large body that goes nowhere else is not read once more
for that. Whatever is stored is sealed.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable

import xxhash

from raysync.errors import PayloadError

_HEADER = struct.Struct("<2sBBIII")
_MAGIC = b"rs"
_VERSION = 1

_UNSEALED = bytes(4)

OVERHEAD_BYTES = _HEADER.size
MAX_ELEMENTS = 2**28
"""The most elements one payload may announce (1 GiB of fp32); a block is far smaller."""


def pack(codec: int, count: int, *parts: bytes | memoryview) -> bytes:
    """Return the parts, as one body, in an envelope that names its codec and element count."""
    start = _HEADER.pack(_MAGIC, _VERSION, codec, count, sum(map(len, parts)), 0)[:12]
    return b"".join((start, _checksum(start, *parts), *parts))


def pack_in_place(codec: int, count: int, length: int, write: Callable[[memoryview], None]) -> bytes:
    """Return an envelope whose body of `length` bytes `write` fills where it lies: large bodies are never copied."""
    buffer = io.BytesIO(bytes(OVERHEAD_BYTES + length))
    with buffer.getbuffer() as view:
        view[:12] = _HEADER.pack(_MAGIC, _VERSION, codec, count, length, 0)[:12]
        with view[OVERHEAD_BYTES:] as body:
            write(body)
            view[12:OVERHEAD_BYTES] = _checksum(view[:12], body)
    return buffer.getvalue()


def begin(codec: int, count: int, length: int) -> bytes:
    """Return the header of a payload without a checksum, whose body is written behind it."""
    return _HEADER.pack(_MAGIC, _VERSION, codec, count, length, 0)


def sealed(payload: bytes) -> bytes:
    """Return a payload as bytes of its own, with a checksum if it had none: to be stored."""
    if len(payload) < OVERHEAD_BYTES or payload[12:OVERHEAD_BYTES] != _UNSEALED:
        return bytes(payload)
    view = memoryview(payload)
    body = view[OVERHEAD_BYTES:]
    return b"".join((view[:12], _checksum(view[:12], body), body))


def codec_of(payload: bytes) -> int:
    """Return the codec number an envelope names, without checking the rest."""
    if len(payload) < OVERHEAD_BYTES:
        raise PayloadError(f"{len(payload)} bytes are fewer than the {OVERHEAD_BYTES} of a header")
    return payload[3]


def verify(payload: bytes) -> tuple[int, int]:
    """Return codec number and element count of a payload; raise `PayloadError` if it is none or was damaged on the way.
    Done once, where it arrives.
    """
    codec, count = _open(payload)
    if payload[12:OVERHEAD_BYTES] != _UNSEALED:
        view = memoryview(payload)
        if _checksum(view[:12], view[OVERHEAD_BYTES:]) != view[12:OVERHEAD_BYTES]:
            raise PayloadError("the checksum does not match: it was damaged on the way")
    return codec, count


def unpack(payload: bytes, codec: int) -> tuple[int, memoryview]:
    """Return element count and body of a payload made by `codec`; raise `PayloadError` for anything else.

    Looks at the header only; whether the body arrived as it was sent is `verify`'s business.
    """
    found, count = _open(payload)
    if found != codec:
        raise PayloadError(f"it was made by codec number {found}, not {codec}")
    return count, memoryview(payload)[OVERHEAD_BYTES:]


def _open(payload: bytes) -> tuple[int, int]:
    """Return codec number and element count of a header that fits its payload."""
    if len(payload) < OVERHEAD_BYTES:
        codec_of(payload)
    magic, version, codec, count, length, _ = _HEADER.unpack_from(payload)
    if magic != _MAGIC or version != _VERSION:
        raise PayloadError(f"header {magic!r} version {version} is not raysync's version {_VERSION}")
    if count > MAX_ELEMENTS:
        raise PayloadError(f"{count} elements are more than the {MAX_ELEMENTS} a block may have")
    if len(payload) - OVERHEAD_BYTES != length:
        raise PayloadError(f"the body has {len(payload) - OVERHEAD_BYTES} bytes, its header says {length}")
    return codec, count


def _checksum(*parts: bytes | memoryview) -> bytes:
    digest = xxhash.xxh3_64()
    for part in parts:
        digest.update(part)
    return digest.digest()[:3:-1].replace(_UNSEALED, b"\1\0\0\0")

"""The envelope of every payload: a little-endian header that says all a receiver must know, and a CRC over the
rest.

magic 2s | version u8 | codec u8 | element count u32 | body length u32 | crc32 of (the first 12 bytes, body) u32
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable

from zlib_ng.zlib_ng import crc32

from raysync.errors import PayloadError

_HEADER = struct.Struct("<2sBBIII")
_MAGIC = b"rs"
_VERSION = 1

OVERHEAD_BYTES = _HEADER.size
MAX_ELEMENTS = 2**28
"""The most elements one payload may announce (1 GiB of fp32); a block is far smaller."""


def pack(codec: int, count: int, *parts: bytes | memoryview) -> bytes:
    """Return the parts, as one body, in an envelope that names its codec and element count."""
    start = _HEADER.pack(_MAGIC, _VERSION, codec, count, sum(map(len, parts)), 0)[:12]
    checksum = crc32(start)
    for part in parts:
        checksum = crc32(part, checksum)
    return b"".join((start, checksum.to_bytes(4, "little"), *parts))


def pack_in_place(codec: int, count: int, length: int, write: Callable[[memoryview], None]) -> bytes:
    """Return an envelope whose body of `length` bytes `write` fills where it lies: large bodies are never copied."""
    buffer = io.BytesIO(bytes(OVERHEAD_BYTES + length))
    with buffer.getbuffer() as view:
        view[:12] = _HEADER.pack(_MAGIC, _VERSION, codec, count, length, 0)[:12]
        with view[OVERHEAD_BYTES:] as body:
            write(body)
            view[12:OVERHEAD_BYTES] = crc32(body, crc32(view[:12])).to_bytes(4, "little")
    return buffer.getvalue()


def codec_of(payload: bytes) -> int:
    """Return the codec number an envelope names, without checking the rest."""
    if len(payload) < OVERHEAD_BYTES:
        raise PayloadError(f"{len(payload)} bytes are fewer than the {OVERHEAD_BYTES} of a header")
    return payload[3]


def unpack(payload: bytes, codec: int) -> tuple[int, memoryview]:
    """Return element count and body of a payload made by `codec`; raise `PayloadError` for anything else."""
    if len(payload) < OVERHEAD_BYTES:
        raise PayloadError(f"{len(payload)} bytes are fewer than the {OVERHEAD_BYTES} of a header")
    magic, version, found, count, length, crc = _HEADER.unpack_from(payload)
    if magic != _MAGIC or version != _VERSION:
        raise PayloadError(f"header {magic!r} version {version} is not raysync's version {_VERSION}")
    if found != codec:
        raise PayloadError(f"it was made by codec number {found}, not {codec}")
    if count > MAX_ELEMENTS:
        raise PayloadError(f"{count} elements are more than the {MAX_ELEMENTS} a block may have")
    body = memoryview(payload)[OVERHEAD_BYTES:]
    if len(body) != length:
        raise PayloadError(f"the body has {len(body)} bytes, its header says {length}")
    if crc32(body, crc32(memoryview(payload)[:12])) != crc:
        raise PayloadError("the checksum does not match: it was damaged on the way")
    return count, body

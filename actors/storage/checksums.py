"""Checksums of a checkpoint's files, worked out while they are written."""

from __future__ import annotations

from typing import Any

import xxhash

_PIECE_BYTES = 1 << 22


def checksum_of(data: bytes) -> str:
    """Return the checksum of bytes, with its kind."""
    return f"xxh3_128:{xxhash.xxh3_128_hexdigest(data)}"


class Summed:
    """A stream that works out the checksum of what passes through."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._sum = stream, xxhash.xxh3_128()

    @property
    def checksum(self) -> str:
        """Of what has passed so far."""
        return f"xxh3_128:{self._sum.hexdigest()}"

    def write(self, data: Any) -> int:
        """Pass bytes on."""
        self._sum.update(data)
        return int(self._stream.write(data) or len(data))

    def flush(self) -> None:
        """Pass on what is held."""
        self._stream.flush()


def checksum_of_stream(stream: Any) -> str:
    """Return the checksum of what a stream has left, piece by piece."""
    found = xxhash.xxh3_128()
    while piece := stream.read(_PIECE_BYTES):
        found.update(piece)
    return f"xxh3_128:{found.hexdigest()}"

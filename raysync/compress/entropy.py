"""Entropy coding by zstd, with a bound on what comes out."""

from __future__ import annotations

import numpy as np
import zstandard
from numpy.typing import NDArray

from raysync.errors import PayloadError

_LEVEL = 1


def pack_bytes(data: bytes | memoryview) -> bytes:
    """Return the data compressed."""
    return zstandard.ZstdCompressor(level=_LEVEL, write_checksum=False).compress(data)


def unpack_bytes(data: memoryview, length: int) -> bytes:
    """Return exactly `length` bytes; anything else is refused before it is made."""
    try:
        if zstandard.frame_content_size(data) != length:
            raise PayloadError(f"its compressed part is not one of {length} bytes")
        found = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompress(data, max_output_size=length)
    except zstandard.ZstdError as error:
        raise PayloadError(f"its compressed part is damaged: {error}") from error
    if len(found) != length:
        raise PayloadError(f"its compressed part is not one of {length} bytes")
    return found


def pack_positions(positions: NDArray[np.int32]) -> bytes:
    """Return ascending positions as compressed gaps, the bytes of equal weight side by side."""
    gaps = np.diff(positions, prepend=np.int32(-1)) - 1
    return pack_bytes(gaps.astype("<u4").view(np.uint8).reshape(-1, 4).T.tobytes())


def unpack_positions(data: memoryview, number: int, count: int) -> NDArray[np.int64]:
    """Return `number` ascending positions below `count`."""
    planes = np.frombuffer(unpack_bytes(data, 4 * number), np.uint8).reshape(4, number)
    gaps = np.ascontiguousarray(planes.T).view("<u4").reshape(-1).astype(np.int64)
    positions = np.cumsum(gaps + 1) - 1
    if number and positions[-1] >= count:
        raise PayloadError(f"position {positions[-1]} is behind the last of {count} elements")
    return positions

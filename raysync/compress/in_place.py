"""Lossless payloads in memory that is used again: numbers are written where they will be sent from, and read where they
arrived.

A fresh buffer costs more than what is written into it, since its pages must be found first. So each block of a sender
has a room: a few buffers, each of which is taken again once nobody but the room knows it: no message on its way, no
result that may have to be repeated, no tensor. What was handed out therefore never changes.
"""

from __future__ import annotations

import ctypes
import sys
from typing import TYPE_CHECKING

import numpy as np

from raysync.compress.base import all_finite, check_size, refuse_non_finite
from raysync.compress.identity import Identity
from raysync.compress.wire import OVERHEAD_BYTES, begin, unpack
from raysync.errors import PayloadError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

_ALIGNED = 64
"""The numbers begin where a vector register's loads do not straddle cache lines."""
_SPARE = 3
"""So many buffers that nobody looks at are kept: what a slow peer held for long is given back."""


def _references(buffers: list[NDArray[np.uint8]]) -> list[int]:
    return [sys.getrefcount(buffer) for buffer in buffers]


_UNUSED = _references([np.empty(1, np.uint8)])[0]
"""References to a buffer that nothing but its room knows."""


class Room:
    """Where the lossless payloads of one block are written; one thread's."""

    def __init__(self) -> None:
        self._buffers: dict[int, list[NDArray[np.uint8]]] = {}
        """By size."""

    def take(self, count: int) -> tuple[bytes, Tensor]:
        """Return a payload without a checksum for so many elements, and the tensor to write them into."""
        import torch

        buffer = self._free(_ALIGNED + 4 * count)
        payload = buffer.data[_ALIGNED - OVERHEAD_BYTES :]
        numbers = (
            torch.frombuffer(buffer, dtype=torch.float32, count=count, offset=_ALIGNED) if count else torch.empty(0)
        )
        return payload, numbers  # type: ignore[return-value]

    def write(self, values: Tensor) -> bytes:
        """Return a payload of these values; raise `PayloadError` if one is not finite."""
        payload, numbers = self.take(len(values))
        numbers.copy_(values)
        if not all_finite(numbers):
            raise refuse_non_finite()
        return payload

    def _free(self, size: int) -> NDArray[np.uint8]:
        known = self._buffers.setdefault(size, [])
        unused = [index for index, count in enumerate(_references(known)) if count <= _UNUSED]
        for index in reversed(unused[_SPARE:]):
            del known[index]
        if unused:
            return known[unused[0]]
        raw = np.empty(size + _ALIGNED, np.uint8)
        start = -raw.ctypes.data % _ALIGNED
        buffer, length = raw[start : start + size], size - _ALIGNED
        header = begin(Identity.number, length // 4, length)
        buffer[_ALIGNED - OVERHEAD_BYTES : _ALIGNED] = np.frombuffer(header, np.uint8)
        known.append(buffer)
        return buffer


def values_of(payload: bytes, size: int) -> Tensor | None:
    """Return the numbers of a lossless payload where they lie, to be read from while the payload lives; None for those
    of another codec.

    Whoever made the payload has seen that they are finite.
    """
    if payload[3] != Identity.number:
        return None
    count, body = unpack(payload, Identity.number)
    check_size(count, size)
    if len(body) != 4 * count:
        raise PayloadError(f"{len(body)} bytes cannot hold {count} fp32 elements")
    return borrow(body, count)


def borrow(body: memoryview, count: int) -> Tensor:
    """Return numbers where they lie, as a tensor to read from while their memory lives; nothing is copied."""
    import torch

    if count == 0:
        return torch.empty(0)
    address = np.frombuffer(body, np.uint8).__array_interface__["data"][0]
    return torch.frombuffer((ctypes.c_char * (4 * count)).from_address(address), dtype=torch.float32)

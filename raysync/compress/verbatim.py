"""Values as they are: fp32 bit for bit, NaN and infinities included. Buffers and moments travel this way.

Not a codec a job can choose: parameters never hold what this lets through, so a receiver says which of the two it
expects by calling this module or `registry`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from raysync.compress.base import check_size, contiguous
from raysync.compress.wire import pack, unpack, verify
from raysync.errors import PayloadError

if TYPE_CHECKING:
    from torch import Tensor

NUMBER = 255
"""Codecs count from 0 up; this is none of them."""


def encode(values: Tensor) -> bytes:
    """Return the bytes for a one-dimensional fp32 tensor."""
    array = contiguous(values.cpu())
    return pack(NUMBER, array.size, array.astype("<f4", copy=False).data.cast("B"))


def decode(payload: bytes, size: int | None = None) -> Tensor:
    """Return the tensor the bytes stand for; raise `PayloadError` if they are damaged or not of `size` elements."""
    import torch

    check(payload, size)
    _, body = unpack(payload, NUMBER)
    return torch.from_numpy(np.frombuffer(body, "<f4").astype(np.float32, copy=True))


def check(payload: bytes, size: int | None = None) -> None:
    """Raise `PayloadError` unless a payload arrived whole and is for `size` elements."""
    verify(payload)
    count, body = unpack(payload, NUMBER)
    check_size(count, size)
    if len(body) != 4 * count:
        raise PayloadError(f"{len(body)} bytes cannot hold {count} fp32 elements")

"""Chunks with a scale each: what `onebit`, `int8` and `qsgd` have in common on the wire and in torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from raysync.errors import PayloadError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

LANES = 32


def _power_of_two(chunk: int) -> int:
    if chunk & (chunk - 1):
        raise ValueError(f"must be a power of two, for example {1 << (chunk.bit_length() - 1)}")
    return chunk


Chunk = Annotated[int, Field(ge=LANES, le=1 << 20), AfterValidator(_power_of_two)]
"""Elements that share one scale."""


def count_chunks(count: int, chunk: int) -> int:
    """Return how many chunks `count` elements make."""
    return -(-count // chunk)


def write_scales(chunk: int, scales: NDArray[np.float32]) -> bytes:
    """Return the chunk length, as a power of two, and the scales."""
    return bytes([chunk.bit_length() - 1]) + scales.astype("<f4", copy=False).tobytes()


def read_scales(body: memoryview, count: int) -> tuple[int, NDArray[np.float32], memoryview]:
    """Return chunk length, scales, and what follows them."""
    if len(body) < 1 or not 5 <= body[0] <= 20:
        raise PayloadError("it does not say how long its chunks are")
    chunk = 1 << body[0]
    length = 4 * count_chunks(count, chunk)
    if len(body) < 1 + length:
        raise PayloadError(f"{len(body)} bytes cannot hold the scales of {count} elements")
    scales = np.frombuffer(body[1 : 1 + length], "<f4").astype(np.float32)
    if not np.isfinite(scales).all() or (scales < 0).any():
        raise PayloadError("a scale is negative or not finite")
    return chunk, scales, body[1 + length :]


def by_chunk(values: Tensor, chunk: int) -> Tensor:
    """Return the values as rows of one chunk each, the last filled up with zeros."""
    from torch.nn.functional import pad

    rows: Tensor = pad(values, (0, -len(values) % chunk)).view(-1, chunk)
    return rows


def spread(scales: Tensor, count: int, chunk: int) -> Tensor:
    """Return each element's scale."""
    return scales.repeat_interleave(chunk)[:count]


def chunk_sums(terms: Tensor, chunk: int) -> Tensor:
    """Return the fp64 sum of each chunk's terms: 32 lanes one after the other, then folded by halves."""
    rows = by_chunk(terms, chunk).view(-1, chunk // LANES, LANES)
    lanes = rows[:, 0].clone()
    for group in range(1, chunk // LANES):
        lanes += rows[:, group]
    width = LANES
    while width > 1:
        width //= 2
        lanes = lanes[:, :width] + lanes[:, width : 2 * width]
    return lanes[:, 0]


def chunk_lengths(count: int, chunk: int, like: Tensor) -> Tensor:
    """Return each chunk's number of elements: all full but the last."""
    lengths = like.new_full((count_chunks(count, chunk),), float(chunk))
    if count % chunk:
        lengths[-1] = count % chunk
    return lengths


def uniform(count: int, seed: int, device: torch.device) -> Tensor:
    """Return numbers in [0, 1), element i depending on i and seed alone (a 32-bit finaliser over a Weyl sequence)."""
    import torch

    mask = 0xFFFFFFFF
    x = (torch.arange(count, dtype=torch.int64, device=device) * 0x9E3779B9 + (seed & mask)) & mask
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & mask
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & mask
    x = x ^ (x >> 16)
    return (x >> 8).float() * 2.0**-24

"""`randomk`: a random subset that both ends draw from a shared seed, so that no positions travel.

The elements are cut into k strata whose lengths differ by at most one; one element of each is kept, drawn by a hash
of seed and stratum. `unbiased` multiplies it by its stratum's length, so that the mean over seeds is the vector
itself.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from raysync.compress.base import all_finite, check_size, refuse_non_finite
from raysync.compress.sparse import Sparse
from raysync.compress.wire import pack, unpack
from raysync.errors import PayloadError

if TYPE_CHECKING:
    from torch import Tensor

_START = struct.Struct("<QI")
"""Seed, number kept."""


class RandomK(Sparse):
    """Keeps a random share of the elements."""

    kind: Literal["randomk"] = "randomk"
    number: ClassVar[int] = 6
    ratio: float = Field(gt=0, le=1)
    """Share of the elements kept."""
    unbiased: bool = False
    """Scale what is kept so that nothing is lost on average; without it, error feedback sends the rest later."""

    @property
    def error_bound(self) -> float:
        return 1 / self.ratio - 1 if self.unbiased else 1 - self.ratio

    def squeeze(self, update: Tensor, residual: Tensor, seed: int) -> bytes:
        import torch

        values = update + residual
        if not all_finite(values):
            raise refuse_non_finite()
        count = len(values)
        kept = min(count, max(1, round(self.ratio * count)))
        positions, lengths = draw(count, kept, seed)
        where = torch.from_numpy(positions).to(values.device)
        sent = values[where]
        if self.unbiased:
            sent = sent * torch.from_numpy(lengths).to(sent)
        if not all_finite(sent):
            raise refuse_non_finite()
        residual.copy_(values)
        residual[where] -= sent
        body = sent.cpu().numpy().astype("<f4", copy=False).tobytes()
        return pack(self.number, count, _START.pack(seed & (2**64 - 1), kept), body)

    @classmethod
    def _unpack(cls, payload: bytes, size: int | None) -> tuple[int, NDArray[np.int64], NDArray[np.float32]]:
        count, body = unpack(payload, cls.number)
        check_size(count, size)
        if len(body) < _START.size:
            raise PayloadError(f"{len(body)} bytes cannot hold the start of a sparse block")
        seed, kept = _START.unpack_from(body)
        if kept > count or len(body) != _START.size + 4 * kept or (kept == 0) != (count == 0):
            raise PayloadError(f"{len(body)} bytes cannot hold {kept} of {count} values")
        values = np.frombuffer(body[_START.size :], "<f4").astype(np.float32)
        if not np.isfinite(values).all():
            raise PayloadError("it holds a NaN or an infinity")
        return count, draw(count, kept, seed)[0], values


def draw(count: int, kept: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return one position in each of `kept` strata of `count` elements, ascending, and the strata's lengths."""
    edges = np.arange(kept + 1, dtype=np.uint64) * np.uint64(count) // np.uint64(max(1, kept))
    starts, lengths = edges[:-1], np.diff(edges)
    x = np.arange(kept, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed & (2**64 - 1))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    x ^= x >> np.uint64(31)
    return (starts + x % np.maximum(lengths, np.uint64(1))).astype(np.int64), lengths.astype(np.float32)

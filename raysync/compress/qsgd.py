"""`qsgd`: stochastic levels of the chunk's norm (Alistarh et al. 2017), entropy-coded.

level = floor(s |v| / norm2(chunk) + r) * sign, r uniform in [0, 1): unbiased, variance at most min(d / s^2, sqrt(d)
/ s) |v|^2. Small levels are common, so they cost far less than a byte each.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from raysync.compress.base import Compressor, check_size, refuse_non_finite
from raysync.compress.chunks import Chunk, chunk_sums, read_scales, write_scales
from raysync.compress.entropy import pack_bytes, unpack_bytes
from raysync.compress.levels import add_levels, round_levels, units
from raysync.compress.wire import pack, unpack
from raysync.errors import PayloadError

if TYPE_CHECKING:
    from torch import Tensor


class QSGD(Compressor):
    """Levels -s .. s of the chunk's L2 norm, rounded at random."""

    kind: Literal["qsgd"] = "qsgd"
    number: ClassVar[int] = 7
    levels: int = Field(default=16, ge=1, le=126)
    """s: how many steps lie between zero and the norm."""
    chunk: Chunk = 64

    @property
    def error_bound(self) -> float:
        return min(self.chunk / self.levels**2, math.sqrt(self.chunk) / self.levels)

    def squeeze(self, update: Tensor, residual: Tensor, seed: int) -> bytes:
        return self._squeeze(update, residual, seed)

    def _squeeze(self, update: Tensor, residual: Tensor, seed: int, in_torch: bool = False) -> bytes:
        values = update + residual
        norms = chunk_sums(values.double().square(), self.chunk).sqrt().float().cpu().numpy()
        if not np.isfinite(norms).all():
            raise refuse_non_finite(int(np.argmin(np.isfinite(norms))) * self.chunk)
        unit, inverse = units(norms, self.levels)
        found = np.empty(len(update), np.int8)
        round_levels(update, residual, self.chunk, unit, inverse, self.levels, seed, found, in_torch)
        compressed = pack_bytes(found.view(np.uint8).data)
        return pack(self.number, found.size, write_scales(self.chunk, unit), bytes([self.levels]), compressed)

    @classmethod
    def decode(cls, payload: bytes, size: int | None = None) -> Tensor:
        import torch

        count, body = unpack(payload, cls.number)
        check_size(count, size)
        chunk, unit, rest = read_scales(body, count)
        if len(rest) < 1:
            raise PayloadError("it does not say how many levels it has")
        found = np.frombuffer(unpack_bytes(rest[1:], count), np.int8)
        if count and max(found.max(), -int(found.min())) > rest[0]:
            raise PayloadError(f"a level is beyond {rest[0]}")
        out = np.zeros(count, np.float32)
        add_levels(found, unit, chunk, out, 1.0)
        return torch.from_numpy(out)

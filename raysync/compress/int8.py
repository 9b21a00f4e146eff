"""`int8`: 8-bit integers with one scale per chunk: level = round(127 v / max|v|), stochastic or nearest."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from raysync.compress.base import Compressor, check_size, contiguous, refuse_non_finite
from raysync.compress.chunks import Chunk, read_scales, write_scales
from raysync.compress.levels import add_levels, largest_magnitudes, round_levels, units
from raysync.compress.wire import pack_in_place, unpack
from raysync.errors import PayloadError

if TYPE_CHECKING:
    from torch import Tensor

_LEVELS = 127


class Int8(Compressor):
    """8 + 32 / chunk bits per element; stochastic rounding is unbiased."""

    kind: Literal["int8"] = "int8"
    number: ClassVar[int] = 3
    rounding: Literal["stochastic", "nearest"] = "stochastic"
    chunk: Chunk = 4096

    def squeeze(self, update: Tensor, residual: Tensor, seed: int) -> bytes:
        return self._squeeze(update, residual, seed)

    def _squeeze(self, update: Tensor, residual: Tensor, seed: int, in_torch: bool = False) -> bytes:
        largest = largest_magnitudes(update, residual, self.chunk)
        if not np.isfinite(largest).all():
            raise refuse_non_finite(int(np.argmin(np.isfinite(largest))) * self.chunk)
        unit, inverse = units(largest, _LEVELS)
        noise = seed if self.rounding == "stochastic" else None
        scales = write_scales(self.chunk, unit)

        def write(body: memoryview) -> None:
            body[: len(scales)] = scales
            levels = np.frombuffer(body, np.int8, offset=len(scales))
            round_levels(update, residual, self.chunk, unit, inverse, _LEVELS, noise, levels, in_torch)

        return pack_in_place(self.number, len(update), len(scales) + len(update), write)

    @classmethod
    def decode(cls, payload: bytes, size: int | None = None) -> Tensor:
        import torch

        count, chunk, unit, levels = cls._unpack(payload, size)
        out = np.zeros(count, np.float32)
        add_levels(levels, unit, chunk, out, 1.0)
        return torch.from_numpy(out)

    @classmethod
    def decode_add(cls, payload: bytes, out: Tensor, weight: float = 1.0) -> None:
        if out.is_cuda or not out.is_contiguous():
            super().decode_add(payload, out, weight)
            return
        _, chunk, unit, levels = cls._unpack(payload, len(out))
        add_levels(levels, unit, chunk, contiguous(out), weight)

    @classmethod
    def _unpack(cls, payload: bytes, size: int | None) -> tuple[int, int, NDArray[np.float32], NDArray[np.int8]]:
        count, body = unpack(payload, cls.number)
        check_size(count, size)
        chunk, unit, rest = read_scales(body, count)
        if len(rest) != count:
            raise PayloadError(f"{len(rest)} bytes cannot hold {count} levels")
        levels = np.frombuffer(rest, np.int8)
        if levels.size and levels.min() < -_LEVELS:
            raise PayloadError("a level is below -127")
        return count, chunk, unit, levels

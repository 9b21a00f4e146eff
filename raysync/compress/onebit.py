"""`onebit`: the sign of every element, and one scale per chunk; DoubleSqueeze's 1-bit codec.

decode(v) = scale * sign(v), scale = norm2(v) / sqrt(d) (`rms`, which keeps the norm and drains residuals fastest)
or mean(|v|) (`mean_abs`, the optimal sign quantiser, always a contraction). 1 + 32 / chunk bits per element.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from raysync.compress.base import Compressor, check_size, contiguous, refuse_non_finite
from raysync.compress.chunks import (
    LANES,
    Chunk,
    chunk_lengths,
    chunk_sums,
    count_chunks,
    read_scales,
    spread,
    write_scales,
)
from raysync.compress.wire import pack, unpack
from raysync.errors import PayloadError

if TYPE_CHECKING:
    from torch import Tensor


class OneBit(Compressor):
    """Signs and scales; zero counts as positive."""

    kind: Literal["onebit"] = "onebit"
    number: ClassVar[int] = 4
    scale: Literal["rms", "mean_abs"] = "rms"
    chunk: Chunk = 4096

    def squeeze(self, update: Tensor, residual: Tensor, seed: int) -> bytes:
        if update.is_cuda or not residual.is_contiguous():
            return self._squeeze_torch(update, residual)
        from raysync.compress import kernels

        values, rest = contiguous(update), contiguous(residual)
        scales = np.empty(count_chunks(values.size, self.chunk), np.float32)
        kernels.chunk_scales(values, rest, self.chunk, self.scale == "mean_abs", scales)
        self._check(scales)
        words = np.zeros(-(-values.size // LANES), np.uint32)
        kernels.onebit_squeeze(values, rest, self.chunk, scales, words)
        return self._pack(values.size, scales, words.astype("<u4", copy=False).view(np.uint8))

    def _squeeze_torch(self, update: Tensor, residual: Tensor) -> bytes:
        """Do the same in torch operations, on whatever device the tensors are."""
        import torch

        values = update + residual
        terms = values.double().abs() if self.scale == "mean_abs" else values.double().square()
        means = chunk_sums(terms, self.chunk) / chunk_lengths(len(values), self.chunk, terms)
        scales = (means if self.scale == "mean_abs" else means.sqrt()).float()
        self._check(scales.cpu().numpy())
        negative = values < 0
        each = spread(scales, len(values), self.chunk)
        residual.copy_(values - torch.where(negative, -each, each))
        bits = np.packbits(negative.cpu().numpy(), bitorder="little")
        return self._pack(len(values), scales.cpu().numpy(), bits)

    def _check(self, scales: NDArray[np.float32]) -> None:
        if not np.isfinite(scales).all():
            raise refuse_non_finite(int(np.argmin(np.isfinite(scales))) * self.chunk)

    def _pack(self, count: int, scales: NDArray[np.float32], bits: NDArray[np.uint8]) -> bytes:
        return pack(self.number, count, write_scales(self.chunk, scales), bits[: -(-count // 8)].data)

    @classmethod
    def decode(cls, payload: bytes, size: int | None = None) -> Tensor:
        import torch

        count, chunk, scales, words = cls._unpack(payload, size)
        out = np.zeros(count, np.float32)
        cls._add(chunk, scales, words, out, 1.0)
        return torch.from_numpy(out)

    @classmethod
    def decode_add(cls, payload: bytes, out: Tensor, weight: float = 1.0) -> None:
        if out.is_cuda or not out.is_contiguous():
            super().decode_add(payload, out, weight)
            return
        _, chunk, scales, words = cls._unpack(payload, len(out))
        cls._add(chunk, scales, words, contiguous(out), weight)

    @staticmethod
    def _add(
        chunk: int, scales: NDArray[np.float32], words: NDArray[np.uint32], out: NDArray[np.float32], weight: float
    ) -> None:
        from raysync.compress import kernels

        kernels.onebit_add(words, scales, chunk, np.float32(weight), out)

    @classmethod
    def _unpack(cls, payload: bytes, size: int | None) -> tuple[int, int, NDArray[np.float32], NDArray[np.uint32]]:
        count, body = unpack(payload, cls.number)
        check_size(count, size)
        chunk, scales, rest = read_scales(body, count)
        if len(rest) != -(-count // 8):
            raise PayloadError(f"{len(rest)} bytes cannot hold the signs of {count} elements")
        bits = np.zeros(4 * -(-count // LANES), np.uint8)
        bits[: len(rest)] = np.frombuffer(rest, np.uint8)
        if count % 8 and rest[-1] >> (count % 8):
            raise PayloadError("bits behind the last element are set")
        return count, chunk, scales, bits.view("<u4").astype(np.uint32, copy=False)

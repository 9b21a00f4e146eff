"""`identity`: the fp32 numbers themselves; the baseline every other codec is measured against."""

from __future__ import annotations

import ctypes
import sys
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from raysync.compress.base import Compressor, all_finite, check_size, refuse_non_finite
from raysync.compress.wire import pack, unpack
from raysync.errors import PayloadError

if TYPE_CHECKING:
    from torch import Tensor


class Identity(Compressor):
    """Sends every bit: 32 bits per element, residual zero."""

    kind: Literal["identity"] = "identity"
    lossless: ClassVar[bool] = True
    number: ClassVar[int] = 0

    def encode(self, x: Tensor, seed: int) -> bytes:
        if not all_finite(x):
            raise refuse_non_finite()
        values = x.detach().contiguous().cpu().numpy()
        return pack(self.number, values.size, values.astype("<f4", copy=False).data.cast("B"))

    def squeeze(self, update: Tensor, residual: Tensor, seed: int) -> bytes:
        payload = self.encode(update + residual, seed)
        residual.zero_()
        return payload

    @classmethod
    def decode(cls, payload: bytes, size: int | None = None) -> Tensor:
        import torch

        count, body = unpack(payload, cls.number)
        check_size(count, size)
        if len(body) != 4 * count:
            raise PayloadError(f"{len(body)} bytes cannot hold {count} fp32 elements")
        values = torch.from_numpy(np.frombuffer(body, "<f4").astype(np.float32, copy=True))
        if not all_finite(values):
            raise PayloadError("it holds a NaN or an infinity")
        return values

    @classmethod
    def decode_add(cls, payload: bytes, out: Tensor, weight: float = 1.0) -> None:
        count, body = unpack(payload, cls.number)
        check_size(count, len(out))
        if len(body) != 4 * count or sys.byteorder != "little" or out.is_cuda:
            super().decode_add(payload, out, weight)
            return
        values = _borrow(body, count)
        if not all_finite(values):
            raise PayloadError("it holds a NaN or an infinity")
        out.add_(values, alpha=weight)


def _borrow(body: memoryview, count: int) -> Tensor:
    """Return the numbers where they lie, as a tensor to read from while the payload lives; nothing is copied."""
    import torch

    if count == 0:
        return torch.empty(0)
    address = np.frombuffer(body, np.uint8).ctypes.data
    return torch.from_numpy(np.ctypeslib.as_array((ctypes.c_float * count).from_address(address)))

"""What `fp16` and `bf16` share: every element as a 16-bit float."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from raysync.compress.base import Compressor, all_finite, check_size, refuse_non_finite
from raysync.compress.wire import pack, unpack
from raysync.errors import PayloadError

if TYPE_CHECKING:
    from torch import Tensor


class Half(Compressor):
    """16 bits per element; what does not fit the type's range is clamped and stays in the residual."""

    dtype_name: ClassVar[str]
    largest: ClassVar[float]

    def squeeze(self, update: Tensor, residual: Tensor, seed: int) -> bytes:
        import torch

        values = update + residual
        if not all_finite(values):
            raise refuse_non_finite()
        short = values.clamp(-self.largest, self.largest).to(getattr(torch, self.dtype_name))
        residual.copy_(values.sub_(short.float()))
        body = short.cpu().view(torch.int16).numpy().astype("<i2", copy=False)
        return pack(self.number, body.size, body.data.cast("B"))

    @classmethod
    def decode(cls, payload: bytes, size: int | None = None) -> Tensor:
        import torch

        count, body = unpack(payload, cls.number)
        check_size(count, size)
        if len(body) != 2 * count:
            raise PayloadError(f"{len(body)} bytes cannot hold {count} elements of 16 bits")
        bits = torch.from_numpy(np.frombuffer(body, "<i2").astype(np.int16, copy=True))
        values = bits.view(getattr(torch, cls.dtype_name)).float()
        if not bool(values.isfinite().all()):
            raise PayloadError("it holds a NaN or an infinity")
        return values

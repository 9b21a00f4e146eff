"""`identity`: the fp32 numbers themselves; the baseline every other codec is measured against."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from raysync.compress.base import Compressor
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
        values = x.detach().contiguous().cpu().numpy()
        return pack(self.number, values.size, values.astype("<f4", copy=False).tobytes())

    @classmethod
    def decode(cls, payload: bytes) -> Tensor:
        import torch

        count, body = unpack(payload, cls.number)
        if len(body) != 4 * count:
            raise PayloadError(f"{len(body)} bytes cannot hold {count} fp32 elements")
        return torch.from_numpy(np.frombuffer(body, "<f4").astype(np.float32, copy=True))

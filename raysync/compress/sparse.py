"""What `topk` and `randomk` share: a payload is some positions and their values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from raysync.compress.base import Compressor

if TYPE_CHECKING:
    from torch import Tensor


class Sparse(Compressor):
    """A codec that keeps some elements; a member defines `squeeze` and `_unpack`."""

    @classmethod
    def decode(cls, payload: bytes, size: int | None = None) -> Tensor:
        import torch

        count, positions, values = cls._unpack(payload, size)
        out = np.zeros(count, np.float32)
        out[positions] = values
        return torch.from_numpy(out)

    @classmethod
    def decode_add(cls, payload: bytes, out: Tensor, weight: float = 1.0) -> None:
        import torch

        _, positions, values = cls._unpack(payload, len(out))
        out.index_add_(
            0, torch.from_numpy(positions).to(out.device), torch.from_numpy(values).to(out.device), alpha=weight
        )

    @classmethod
    def _unpack(cls, payload: bytes, size: int | None) -> tuple[int, NDArray[np.int64], NDArray[np.float32]]:
        """Return element count, ascending positions and values; raise `PayloadError` for anything else."""
        raise NotImplementedError

"""What `int8` and `qsgd` share: v is divided by a unit per chunk and rounded to a small integer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from raysync.compress.base import contiguous
from raysync.compress.chunks import by_chunk, count_chunks, spread, uniform

if TYPE_CHECKING:
    from torch import Tensor

SMALLEST = np.float32(1e-36)
"""Below this unit a chunk is sent as zeros: its reciprocal would not be finite. Nothing is lost, the residual keeps
it.
"""


def units(largest: NDArray[np.float32], levels: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return each chunk's unit and its reciprocal, both 0 where the chunk is sent as zeros."""
    unit = (largest / np.float32(levels)).astype(np.float32)
    unit[unit < SMALLEST] = 0
    inverse = np.divide(np.float32(levels), largest, out=np.zeros_like(largest), where=unit > 0)
    return unit, inverse


def largest_magnitudes(update: Tensor, residual: Tensor, chunk: int) -> NDArray[np.float32]:
    """Return the largest magnitude of update + residual in each chunk; not finite where one of them is not."""
    if update.is_cuda:
        return by_chunk((update + residual).abs(), chunk).amax(dim=1).cpu().numpy()
    from raysync.compress import kernels

    largest = np.empty(count_chunks(len(update), chunk), np.float32)
    kernels.chunk_largest(contiguous(update), contiguous(residual), chunk, largest)
    return largest


def round_levels(
    update: Tensor,
    residual: Tensor,
    chunk: int,
    unit: NDArray[np.float32],
    inverse: NDArray[np.float32],
    limit: int,
    seed: int | None,
    levels: NDArray[np.int8],
    in_torch: bool = False,
) -> None:
    """Write the levels of v = update + residual, and leave v - level * unit in `residual`; with a seed, round at
    random.
    """
    if update.is_cuda or in_torch or not residual.is_contiguous():
        levels[:] = _round_torch(update, residual, chunk, unit, inverse, limit, seed)
        return
    from raysync.compress import kernels

    noise = np.uint32((seed or 0) & 0xFFFFFFFF)
    values, rest, top = contiguous(update), contiguous(residual), np.float32(limit)
    kernels.quantise(values, rest, chunk, inverse, unit, top, seed is not None, noise, levels)


def _round_torch(
    update: Tensor,
    residual: Tensor,
    chunk: int,
    unit: NDArray[np.float32],
    inverse: NDArray[np.float32],
    limit: int,
    seed: int | None,
) -> NDArray[np.int8]:
    import torch

    values = update + residual
    steps = spread(torch.from_numpy(unit).to(values.device), len(values), chunk)
    scaled = values * spread(torch.from_numpy(inverse).to(values.device), len(values), chunk)
    level = scaled.round() if seed is None else (scaled + uniform(len(values), seed, values.device)).floor()
    level = level.clamp(-limit, limit)
    residual.copy_(values - level * steps)
    return level.to(torch.int8).cpu().numpy()


def add_levels(
    levels: NDArray[np.int8], unit: NDArray[np.float32], chunk: int, out: NDArray[np.float32], weight: float
) -> None:
    """Add weight times the decoded values to `out`."""
    from raysync.compress import kernels

    kernels.levels_add(levels, unit, chunk, np.float32(weight), out)

"""Norms and products of long fp32 vectors: fast within a stretch, in double across stretches.

One fp32 sum over 5e7 elements errs by 2e-3; stretches of a megabyte by 1e-6, in the same time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

_STRETCH = 1 << 18


def dot(a: Tensor, b: Tensor) -> float:
    """Return the inner product of two vectors."""
    starts = range(0, len(a), _STRETCH)
    return float(sum(torch.dot(a[at : at + _STRETCH], b[at : at + _STRETCH]).item() for at in starts))


def squared_norm(a: Tensor) -> float:
    """Return the squared L2 norm of a vector."""
    return dot(a, a)


def squared_norm_of(parts: Iterable[Tensor]) -> float:
    """Return the squared L2 norm of many vectors together, with one call for all of them: where a model has many small
    tensors, a product of each with itself costs more than the arithmetic.
    """
    pieces = [piece for part in parts for piece in (torch.split(part, _STRETCH) if len(part) > _STRETCH else (part,))]
    return float(torch.stack(torch._foreach_norm(pieces)).double().square().sum()) if pieces else 0.0


def norm(a: Tensor) -> float:
    """Return the L2 norm of a vector."""
    return math.sqrt(squared_norm(a))

"""A task whose evaluation, loss and metrics each in a pass of its own, costs about as much as 50 training steps."""

from __future__ import annotations

import torch
from torch.utils.data import TensorDataset

from raysync.tasks import Digits
from raysync.tasks.base import MapDataset

REPEATS = 9
"""How often the evaluation data is repeated."""


class DearEvaluation(Digits):
    """Digits with a model of 2.07M parameters, evaluated on many samples."""

    hidden: tuple[int, ...] = (1400, 1400)

    def eval_data(self) -> MapDataset:
        """Return the evaluation part several times over."""
        data = super().eval_data()
        assert isinstance(data, TensorDataset)
        return TensorDataset(*(torch.cat([tensor] * REPEATS) for tensor in data.tensors))

"""`digits`: scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, and a small perceptron; trains in seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from raysync.tasks.base import Classification, MapDataset, Task, mlp

if TYPE_CHECKING:
    from torch import nn

_TRAIN = 1437
_SPLIT_SEED = 20240101


class Digits(Classification):
    """Ten classes; 1,437 samples to train on, 360 to evaluate."""

    kind: Literal["digits"] = "digits"
    hidden: tuple[int, ...] = Field(default=(128,), max_length=8)
    """Widths of the hidden layers."""

    def build(self) -> Task:
        return self

    def model(self) -> nn.Module:
        """Return the perceptron 64 - hidden - 10."""
        return mlp((64, *self.hidden, 10))

    def train_data(self) -> MapDataset:
        """Return the training part of a fixed split."""
        return self._part(slice(None, _TRAIN))

    def eval_data(self) -> MapDataset:
        """Return the evaluation part of a fixed split."""
        return self._part(slice(_TRAIN, None))

    def _part(self, part: slice) -> MapDataset:
        import numpy as np
        import torch
        from sklearn.datasets import load_digits
        from torch.utils.data import TensorDataset

        pixels, labels = load_digits(return_X_y=True)
        chosen = np.random.default_rng(_SPLIT_SEED).permutation(len(labels))[part]
        return TensorDataset(torch.from_numpy(pixels[chosen]).float() / 16, torch.from_numpy(labels[chosen]).long())

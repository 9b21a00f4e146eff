"""The task of the comparison on slow hosts: a perceptron of 1.86M parameters on images in MNIST's format.

A host whose environment says so computes at half speed: every step it sleeps as long as a step takes.
"""

from __future__ import annotations

import os
import time
from typing import Any

from torch import Tensor, nn

from raysync.tasks.base import MapDataset
from raysync.tasks.mnist import MNIST

HIDDEN = (1024, 1024)
NUM_TRAIN, NUM_EVAL = 20_000, 4_000
SLOW = "BENCH_SLOW_S"
"""Names the environment's word for it: seconds of sleep in every step."""


def pause() -> None:
    """Sleep if this host is a slow one."""
    slow_s = float(os.environ.get(SLOW, "0"))
    if slow_s:
        time.sleep(slow_s)


class Images:
    """The task as a user would write it."""

    def __init__(self, folder: str) -> None:
        self._images = MNIST(folder=folder, hidden=HIDDEN)

    def model(self) -> nn.Module:
        """Return the perceptron."""
        return self._images.model()

    def train_data(self) -> MapDataset:
        """Return the training images."""
        return self._images.train_data()

    def eval_data(self) -> MapDataset:
        """Return the evaluation images: drawn from other originals."""
        return self._images.eval_data()

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the cross-entropy."""
        pause()
        return self._images.loss(model, batch)

    def evaluate(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        """Return loss and accuracy of one pass."""
        return dict(self._images.evaluate(model, batch))

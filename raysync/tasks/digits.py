"""`digits`: scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, and a small perceptron; trains in seconds."""

from __future__ import annotations

import gzip
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from raysync.errors import TaskError
from raysync.tasks.base import Classification, MapDataset, Task, mlp

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
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
        from torch.utils.data import TensorDataset

        pixels, labels = read_digits()
        chosen = np.random.default_rng(_SPLIT_SEED).permutation(len(labels))[part]
        return TensorDataset(torch.from_numpy(pixels[chosen]).float() / 16, torch.from_numpy(labels[chosen]).long())


@lru_cache(maxsize=1)
def read_digits() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return pixels and labels from scikit-learn's own file, without importing scikit-learn, which takes longer than
    the training.
    """
    import numpy as np

    packed = _package_folder("sklearn").joinpath("datasets", "data", "digits.csv.gz").read_bytes()
    rows = np.array([line.split(b",") for line in gzip.decompress(packed).splitlines()], dtype=np.float64)
    return rows[:, :-1], rows[:, -1].astype(np.int64)


def _package_folder(name: str) -> Path:
    """Return where a package is installed, without importing it."""
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise TaskError("digits", "needs the data that comes with scikit-learn: pip install scikit-learn")
    return Path(spec.submodule_search_locations[0])

"""A task with its data loaded: batches by index, labels, evaluation; shared by all replicas of one process."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset, default_collate

from raysync.errors import TaskError
from raysync.tasks.base import MapDataset, Task

if TYPE_CHECKING:
    from torch import nn

_EVAL_BATCH = 1024


class Part(NamedTuple):
    """A part of the evaluation data: one of `parts` of equal length, counted from 0."""

    part: int = 0
    parts: int = 1

    def of(self, num_samples: int) -> range:
        """Return which of so many samples belong to it."""
        return range(self.part * num_samples // self.parts, (self.part + 1) * num_samples // self.parts)


WHOLE = Part()


class Workload:
    """A task and its data sets."""

    def __init__(self, task: Task, device: str = "cpu") -> None:
        self.task, self._device = task, device
        self.name = str(getattr(task, "kind", type(task).__name__))

    @cached_property
    def train_data(self) -> MapDataset:
        """The training data, loaded when first asked for: whoever only evaluates needs none."""
        data = self.task.train_data()
        if len(data) == 0:
            raise TaskError(self.name, "train_data() is empty")
        return data

    @cached_property
    def eval_data(self) -> MapDataset:
        """The evaluation data, loaded when first asked for."""
        return self.task.eval_data()

    @property
    def num_samples(self) -> int:
        """How many training samples there are."""
        return len(self.train_data)

    def batch(self, indices: NDArray[np.int64]) -> Any:
        """Return the training samples at `indices` as one collated batch."""
        return self._collate(self.train_data, indices)

    def labels(self) -> NDArray[np.int64] | None:
        """Return one label per training sample, from the task's `labels()` or its data; None where there are none."""
        given = getattr(self.task, "labels", None)
        if given is not None:
            return np.asarray(given(), dtype=np.int64)
        if isinstance(self.train_data, TensorDataset) and len(self.train_data.tensors) > 1:
            return self.train_data.tensors[1].numpy().astype(np.int64)
        return None

    def evaluate(self, model: nn.Module, part: Part = WHOLE) -> dict[str, float]:
        """Return the mean loss and metrics over the evaluation data, or a part of it; nothing for an empty part."""
        model.eval()
        totals: dict[str, float] = {}
        chosen = part.of(len(self.eval_data))
        with torch.no_grad():
            for start in range(chosen.start, chosen.stop, _EVAL_BATCH):
                indices = np.arange(start, min(chosen.stop, start + _EVAL_BATCH))
                for name, value in self._judged(model, self._collate(self.eval_data, indices)).items():
                    totals[name] = totals.get(name, 0.0) + self._number(name, value) * len(indices) / len(chosen)
        return {f"eval/{name}": value for name, value in totals.items()}

    def _judged(self, model: nn.Module, batch: Any) -> Mapping[str, Any]:
        """Return loss and metrics of a batch: from one forward pass where the task can, else from one for each."""
        together = getattr(self.task, "evaluate", None)
        if together is None or not _stands_for_all(type(self.task)):
            metrics = getattr(self.task, "metrics", None)
            return {"loss": self.task.loss(model, batch), **(metrics(model, batch) if metrics else {})}
        found = together(model, batch)
        if not isinstance(found, Mapping) or "loss" not in found:
            told = f"the names {', '.join(map(str, found))}" if isinstance(found, Mapping) else type(found).__name__
            raise TaskError(self.name, f"evaluate() must return a dict with 'loss' and other numbers, not {told}")
        return found

    def _number(self, name: str, value: Any) -> float:
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError):
            raise TaskError(
                self.name, f"{name!r} of the evaluation is a {type(value).__name__}; loss and metrics must be numbers"
            ) from None

    def _collate(self, data: MapDataset, indices: NDArray[np.int64]) -> Any:
        if isinstance(data, TensorDataset):
            batch: Any = data[torch.from_numpy(indices)]
        else:
            batch = default_collate([data[int(index)] for index in indices])
        return batch if self._device == "cpu" else _move(batch, self._device)


def _stands_for_all(kind: type) -> bool:
    """Return whether `evaluate` speaks for `loss` and `metrics`: not where a subclass has defined one of them anew."""
    homes = {
        name: next((place for place, base in enumerate(kind.__mro__) if name in vars(base)), len(kind.__mro__))
        for name in ("evaluate", "loss", "metrics")
    }
    return homes["evaluate"] <= min(homes["loss"], homes["metrics"])


def _move(batch: Any, device: str) -> Any:
    """Return a collated batch on another device."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {name: _move(part, device) for name, part in batch.items()}
    if isinstance(batch, (list, tuple)):
        return type(batch)(_move(part, device) for part in batch)
    return batch

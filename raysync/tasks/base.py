"""A task is a model, its data and its loss; a user's own class of this shape is a `custom` task."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from raysync.value import Value

if TYPE_CHECKING:
    from torch import Tensor, nn


class MapDataset(Sized, Protocol):
    """What torch calls a map-style data set."""

    def __getitem__(self, index: Any, /) -> Any: ...


class Task(Protocol):
    """What a worker needs of a task.

    Optional: `metrics(model, batch)`, numbers beside the loss; or in its place `evaluate(model, batch)`, which returns
    the loss and all numbers of one forward pass; `labels()`, `stages(n)`.
    """

    def model(self) -> nn.Module:
        """Return a freshly initialised model; the caller has seeded torch."""
        ...

    def train_data(self) -> MapDataset:
        """Return the training data."""
        ...

    def eval_data(self) -> MapDataset:
        """Return the evaluation data."""
        ...

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean loss of a collated batch."""
        ...


class TaskSpec(Value):
    """The family of tasks in a job specification; a built-in task is its own configuration."""

    kind: str
    metric_names: ClassVar[tuple[str, ...] | None] = ("eval/loss",)
    """The evaluation metrics a job may aim at; None where only the user's code knows."""
    has_labels: ClassVar[bool] = False
    path_fields: ClassVar[tuple[str, ...]] = ()
    """The fields that name files the task reads: a control plane judges them before others' jobs run."""

    def build(self) -> Task:
        """Return the task itself, importing what it needs."""
        raise NotImplementedError


class Classification(TaskSpec):
    """What tasks with one class label per sample share: cross-entropy, accuracy, labels."""

    metric_names: ClassVar[tuple[str, ...] | None] = ("eval/loss", "eval/accuracy")
    has_labels: ClassVar[bool] = True

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean cross-entropy."""
        from torch.nn.functional import cross_entropy

        inputs, labels = batch
        return cross_entropy(model(inputs), labels)

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        """Return the share of samples whose most likely class is the right one."""
        inputs, labels = batch
        return {"accuracy": _accuracy(model(inputs), labels)}

    def evaluate(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        """Return both of one pass."""
        from torch.nn.functional import cross_entropy

        inputs, labels = batch
        scores = model(inputs)
        return {"loss": cross_entropy(scores, labels), "accuracy": _accuracy(scores, labels)}


def _accuracy(scores: Tensor, labels: Tensor) -> Tensor:
    return (scores.argmax(dim=1) == labels).float().mean()


def mlp(sizes: Sequence[int]) -> nn.Sequential:
    """Return a multi-layer perceptron with ReLU between the layers."""
    from torch import nn

    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])

"""What the first and the last stage need of a task whose `loss(model, batch)` knows only whole models.

The first stage asks the loss what it would give the model; the last one lets it go on with what came of that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from raysync.errors import TaskError
from raysync.tasks.workload import Workload


class _Asked(Exception):
    """The loss has called the model."""

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        super().__init__()
        self.arguments = arguments


class _StandIn(nn.Module):
    """A model whose forward is somebody else's."""

    def __init__(self, answer: Callable[..., Any]) -> None:
        super().__init__()
        self._answer = answer

    def forward(self, *arguments: Any) -> Any:
        return self._answer(*arguments)


def model_input(workload: Workload, batch: Any) -> Tensor:
    """Return the one tensor a task's loss would give its model."""

    def ask(*arguments: Any) -> Any:
        raise _Asked(arguments)

    try:
        workload.task.loss(_StandIn(ask), batch)
    except _Asked as asked:
        if len(asked.arguments) == 1 and isinstance(asked.arguments[0], Tensor):
            return asked.arguments[0]
        problem = f"loss() gives its model {len(asked.arguments)} arguments"
        raise TaskError(workload.name, f"{problem}; in a pipeline it is given one tensor") from None
    raise TaskError(
        workload.name, "loss() does not call the model; a pipeline cannot tell what its first stage is given"
    )


def loss_of(workload: Workload, batch: Any, output: Tensor) -> Tensor:
    """Return the loss of a batch, given what the last stage made of it."""
    calls = 0

    def answer(*_: Any) -> Tensor:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise TaskError(workload.name, "loss() calls its model more than once; in a pipeline it may once")
        return output

    return workload.task.loss(_StandIn(answer), batch)

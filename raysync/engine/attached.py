"""A replica around a model and an optimizer that somebody else's loop drives.

The loop has computed gradients; the replica takes them over, and lets the loop's own optimizer step when the engine
says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from raysync.engine.replica import Replica
from raysync.errors import TaskError
from raysync.optim import SGD, Adam, AdamW, AnyOptimizer
from raysync.optim.base import Optimizer
from raysync.spec import JobSpec


class Loop:
    """Stands where a workload stands: somebody else reads the data."""

    name = "attached"
    num_samples = 4096

    def labels(self) -> None:
        """Nobody knows them here."""


class AttachedReplica(Replica):
    """Parameters become views into one flat vector; gradients are gathered into another at every step."""

    def __init__(self, spec: JobSpec, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._spec, self.workload, self.model = spec, Loop(), model  # type: ignore[assignment]
        self._optimizer, self._step = optimizer, optimizer.step
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._check()
        self._check_optimizer()
        self._device = str(self._parameters[0].device)
        self._buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
        self.flat = torch.cat([parameter.detach().reshape(-1) for parameter in self._parameters])
        self.grad = torch.zeros_like(self.flat)
        self.moments: dict[str, Tensor] = {}
        self.loss = float("nan")
        """What the loop said its loss was."""
        self.is_resting = False
        """The loop is over: what is left to do needs no gradient."""
        for parameter, stretch in zip(self._parameters, self._stretches(), strict=True):
            parameter.data = self.flat[stretch].view_as(parameter)

    def _check_optimizer(self) -> None:
        held = {id(parameter) for group in self._optimizer.param_groups for parameter in group["params"]}
        if held != {id(parameter) for parameter in self._parameters}:
            raise TaskError("attached", "the optimizer must hold exactly the model's trainable parameters")
        if self._spec.inner_state == "average":
            raise TaskError("attached", "inner_state='average' needs an optimizer of raysync's; use keep or reset")

    @property
    def own_lr(self) -> float | None:
        """The loop's learning rate: its schedule, not the job's."""
        return float(self._optimizer.param_groups[0]["lr"])

    def compute(self, indices: Any, seed: int) -> float:
        """Take over the gradients the loop has computed."""
        for parameter, stretch in zip(self._parameters, self._stretches(), strict=True):
            if parameter.grad is None or self.is_resting:
                self.grad[stretch].zero_()
            else:
                self.grad[stretch] = parameter.grad.reshape(-1)
        return self.loss

    def step(self, lr: float) -> None:
        """Let the loop's optimizer step; where the mean gradient was handed on, with that."""
        if self.is_resting:
            return
        for parameter, stretch in zip(self._parameters, self._stretches(), strict=True):
            if parameter.grad is not None:
                parameter.grad.copy_(self.grad[stretch].view_as(parameter))
        self._step()

    def tensor_norms(self) -> float:
        """Return the sum of the L2 norms of the gradient's tensors."""
        return float(sum(float(self.grad[stretch].norm()) for stretch in self._stretches()))

    def reset_optimizer(self) -> None:
        """Forget the optimizer's moments."""
        self._optimizer.state.clear()

    def evaluate(self, flat: Tensor, extras: Tensor) -> dict[str, float]:
        """The loop evaluates for itself."""
        return {}

    @property
    def step_of_the_loop(self) -> Callable[..., Any]:
        """The optimizer's own step."""
        return self._step

    def _stretches(self) -> list[slice]:
        stretches, offset = [], 0
        for parameter in self._parameters:
            stretches.append(slice(offset, offset + parameter.numel()))
            offset += parameter.numel()
        return stretches


def server_rule(optimizer: torch.optim.Optimizer) -> AnyOptimizer:
    """Return the server's equivalent of a torch optimizer, for strategies that step on the server."""
    if len(optimizer.param_groups) != 1:
        raise TaskError("attached", "this strategy steps on the server and needs an optimizer with one parameter group")
    group = optimizer.param_groups[0]
    common: dict[str, Any] = {"lr": float(group["lr"]), "weight_decay": group.get("weight_decay", 0.0)}
    betas = dict(zip(("beta1", "beta2"), group.get("betas", ()), strict=False))
    rule: Optimizer | None = None
    if type(optimizer) is torch.optim.SGD and group["dampening"] == 0:
        rule = SGD(**common, momentum=group["momentum"], nesterov=group["nesterov"])
    elif type(optimizer) is torch.optim.AdamW:
        rule = AdamW(**common, **betas, eps=group["eps"])
    elif type(optimizer) is torch.optim.Adam:
        rule = Adam(**common, **betas, eps=group["eps"])
    if rule is None:
        raise TaskError(
            "attached",
            f"this strategy steps on the server, which has no {type(optimizer).__name__}; use SGD, Adam or AdamW, or a "
            "strategy that steps on the workers",
        )
    return rule  # type: ignore[return-value]

"""A replica around a model and an optimizer that the user's own loop drives.

The loop has computed gradients; the replica takes them over, and lets the loop's own optimizer step when the engine
says so.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from raysync.engine.exchange import exchange_of
from raysync.engine.training.binding import Binding
from raysync.engine.training.norms import norm, squared_norm_of
from raysync.engine.training.replica import Replica
from raysync.errors import TaskError
from raysync.optim import SGD, Adam, AdamW, AnyOptimizer
from raysync.optim.base import Optimizer
from raysync.spec import JobSpec
from raysync.tasks.workload import WHOLE, Part


class Loop:
    """Stands where a workload stands: the user's loop reads the data."""

    name = "attached"
    num_samples = 4096

    def labels(self) -> None:
        """They are not known here."""


class AttachedReplica(Replica):
    """Parameters become views into one flat vector; gradients are gathered into another where rounds carry them, and
    stay where autograd has put them where rounds carry displacements.
    """

    def __init__(self, spec: JobSpec, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        loop: Any = Loop()
        self._optimizer, self._step = optimizer, optimizer.step
        binding = Binding(loop.name, model, binds_grad=False)
        self._hold(spec, loop, model, str(binding.flat.device), binding)
        self._needs_closure = needs_closure(optimizer)
        self._gathers = exchange_of(spec).payload == "gradient"
        self._check_optimizer()
        self.loss: float | None = None
        """What the loop said its loss was; None if it has not."""
        self.closure: Callable[[], Any] | None = None
        """What the loop gave to `optimizer.step`, where the optimizer itself calls it."""
        self.is_resting = False
        """The loop is over: what is left to do needs no gradient."""

    def _check_optimizer(self) -> None:
        held = {id(parameter) for group in self._optimizer.param_groups for parameter in group["params"]}
        if held != {id(parameter) for parameter in self._binding.parameters}:
            raise TaskError("attached", "the optimizer must hold exactly the model's trainable parameters")
        if self._spec.inner_state == "average":
            raise TaskError("attached", "inner_state='average' needs an optimizer of raysync's; use keep or reset")
        kind, takes_mean = type(self._optimizer).__name__, exchange_of(self._spec).payload == "gradient"
        if takes_mean and (self._needs_closure or isinstance(self._optimizer, torch.optim.SparseAdam)):
            why = "evaluates the loss by itself" if self._needs_closure else "takes no dense gradient"
            remedy = "use a strategy that averages parameters, such as local_sgd or selsync"
            raise TaskError("attached", f"{kind} {why} and cannot step with the mean gradient; {remedy}")

    @property
    def own_lr(self) -> float | None:
        """The loop's learning rate: its schedule, not the job's."""
        return float(self._optimizer.param_groups[0]["lr"])

    def compute(self, indices: Any, seed: int) -> float | None:
        """Take over the gradients the loop has computed; return the loss if the loop has told it."""
        self._mend()
        if self.is_resting:
            self.grad.zero_()
        elif self._gathers:
            self._binding.gather_gradients()
        return self.loss

    def grad_sq(self) -> float:
        """Return the squared L2 norm of the gradient."""
        if self._gathers or self.is_resting:
            return super().grad_sq()
        return squared_norm_of(self._binding.gradients())

    def tensor_norms(self) -> float:
        """Return the sum of the L2 norms of the gradient's tensors."""
        if self._gathers or self.is_resting:
            return super().tensor_norms()
        return math.fsum(map(norm, self._binding.gradients()))

    def non_finite_gradient(self) -> str | None:
        """Return the name of the first parameter whose gradient holds a NaN or an infinity."""
        if self._gathers or self.is_resting:
            return super().non_finite_gradient()
        return self._binding.non_finite_gradient()

    def step(self, lr: float) -> None:
        """Let the loop's optimizer step with the loop's own gradients."""
        if not self.is_resting:
            self._step(self.closure) if self._needs_closure else self._step()
            self._mend()

    def step_with_mean(self, lr: float) -> None:
        """Let the loop's optimizer step with the mean gradient: also of parameters this worker has not used."""
        if not self.is_resting:
            self._binding.hand_out_gradients()
            self._step()
            self._mend()

    def _mend(self) -> None:
        held = self._binding.parameters
        now = [*held]
        self._binding.mend(self._server_owns)
        for name, before, after in zip(self._binding.names, now, held, strict=True):
            if before is not after:
                problem = f"parameter {name!r} was replaced, and the optimizer still holds the old one"
                raise TaskError("attached", f"{problem}; load with assign=False, or before you make the optimizer")

    def reset_optimizer(self) -> None:
        """Forget the optimizer's moments."""
        self._optimizer.state.clear()

    def evaluate(self, flat: Tensor, extras: Tensor, part: Part = WHOLE) -> dict[str, float]:
        """The loop evaluates for itself."""
        return {}

    def num_judged(self, part: Part) -> int:
        """None: the loop evaluates for itself."""
        return 0

    @property
    def needs_closure(self) -> bool:
        """Whether the optimizer evaluates the loss by itself, several times per step."""
        return self._needs_closure

    @property
    def step_of_the_loop(self) -> Callable[..., Any]:
        """The optimizer's own step."""
        return self._step


def needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer cannot step without a closure, as LBFGS."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


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

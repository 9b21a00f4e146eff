"""One worker's copy of the model, held as flat vectors: parameters and gradients are views, so nothing is copied to
be sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from raysync.errors import TaskError
from raysync.shard import Block, Role
from raysync.spec import JobSpec
from raysync.tasks.workload import Workload

T = TypeVar("T")


class Replica:
    """Model, gradients and the worker's own optimizer.

    `flat` is the live parameter vector. What else is shared at a synchronisation (float buffers, averaged moments)
    is the vector `extras()`, made and loaded on demand.
    """

    def __init__(self, spec: JobSpec, workload: Workload, device: str = "cpu") -> None:
        _seed_torch(spec.seed, device)
        self._device = device
        self._spec, self.workload = spec, workload
        made = workload.task.model()
        if not isinstance(made, nn.Module):
            raise TaskError(workload.name, f"model() returned a {type(made).__name__}, not a torch.nn.Module")
        self.model = made.to(device)
        self._parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self._check()
        self._buffers = [buffer for buffer in self.model.buffers() if buffer.is_floating_point()]
        self.flat = torch.cat([parameter.detach().reshape(-1) for parameter in self._parameters])
        self.grad = torch.zeros_like(self.flat)
        self._bind()
        self.reset_optimizer()

    def _check(self) -> None:
        if not self._parameters:
            raise TaskError(self.workload.name, "model() has no trainable parameters")
        wrong = {str(parameter.dtype) for parameter in self._parameters} - {"torch.float32"}
        if wrong:
            raise TaskError(
                self.workload.name, f"model() has parameters of {', '.join(sorted(wrong))}; return it with .float()"
            )

    def _bind(self) -> None:
        """Make every parameter and its gradient a view into the flat vectors."""
        offset = 0
        for parameter in self._parameters:
            stretch = slice(offset, offset + parameter.numel())
            parameter.data = self.flat[stretch].view_as(parameter)
            parameter.grad = self.grad[stretch].view_as(parameter)
            offset = stretch.stop

    @property
    def own_lr(self) -> float | None:
        """The learning rate where it is not the job's to say."""
        return None

    @property
    def regions(self) -> tuple[tuple[Role, int], ...]:
        """The shared vector's make-up: parameters, float buffers, and moments where the job averages them."""
        buffers = sum(buffer.numel() for buffer in self._buffers)
        moments = len(self.flat) * len(self._shared_moments)
        return (Role.PARAMETER, len(self.flat)), (Role.BUFFER, buffers), (Role.MOMENT, moments)

    @property
    def _shared_moments(self) -> list[Tensor]:
        if self._spec.inner_state != "average":
            return []
        return [self.moments[name] for name in self._spec.optimizer.active_moments]

    def describe(self, block: Block) -> str:
        """Return the names of the parameters a block holds, or what else it is."""
        if block.role is not Role.PARAMETER:
            return f"{block.role.value}s"
        names, offset = [], 0
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                if offset < block.stop and offset + parameter.numel() > block.start:
                    names.append(name)
                offset += parameter.numel()
        return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"

    def compute(self, indices: NDArray[np.int64], seed: int) -> float:
        """Leave the mean gradient over the samples in `grad` and return their mean loss; `seed` drives dropout and
        the like.
        """
        _seed_torch(seed, self._device)
        if not self.model.training:
            self.model.train()
        self.grad.zero_()
        loss = self.workload.task.loss(self.model, self.workload.batch(indices))
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    def step(self, lr: float) -> None:
        """Let the worker's own optimizer apply `grad`."""
        self._spec.optimizer.update(self.flat, self.grad, self.moments, lr)

    def reset_optimizer(self) -> None:
        """Forget the optimizer's moments and step count."""
        self.moments = self._spec.optimizer.state(self.flat)

    def grad_sq(self) -> float:
        """Return the squared L2 norm of the gradient."""
        return float(torch.dot(self.grad, self.grad))

    def tensor_norms(self) -> float:
        """Return the sum of the L2 norms of the gradient's tensors."""
        return math.fsum(float(parameter.grad.norm()) for parameter in self._parameters if parameter.grad is not None)

    def extras(self) -> Tensor:
        """Return float buffers and shared moments as one vector."""
        parts = [buffer.detach().reshape(-1).float() for buffer in self._buffers] + [
            moment.reshape(-1) for moment in self._shared_moments
        ]
        return torch.cat(parts) if parts else self.flat.new_empty(0)

    def load_extras(self, extras: Tensor) -> None:
        """Write a vector made like `extras()` back into buffers and moments."""
        offset = 0
        for target in [*self._buffers, *self._shared_moments]:
            target.copy_(extras[offset : offset + target.numel()].view_as(target))
            offset += target.numel()
        for name in ("exp_avg_sq",):
            if self._shared_moments and name in self.moments:
                self.moments[name].clamp_(min=0)

    def evaluate(self, flat: Tensor, extras: Tensor) -> dict[str, float]:
        """Return the evaluation metrics of the given parameters and buffers."""
        with self._wearing(flat, extras):
            return self.workload.evaluate(self.model)

    def show_model(self, flat: Tensor, extras: Tensor, look: Callable[[dict[str, Any]], T]) -> T:
        """Let `look` see the model's state_dict with the given parameters and buffers, and return what it returns."""
        with self._wearing(flat, extras):
            return look({name: value.detach().cpu() for name, value in self.model.state_dict().items()})

    @contextmanager
    def _wearing(self, flat: Tensor, extras: Tensor) -> Iterator[None]:
        """Give the model other parameters and buffers for a while; the replica's own come back afterwards."""
        is_other = flat.data_ptr() != self.flat.data_ptr()
        own_flat, own_extras = self.flat.clone() if is_other else self.flat, self.extras()
        if is_other:
            self.flat.copy_(flat)
        self.load_extras(extras)
        try:
            yield
        finally:
            if is_other:
                self.flat.copy_(own_flat)
            self.load_extras(own_extras)

    def state_dict(self) -> dict[str, Any]:
        """Return parameters, buffers and the optimizer's state."""
        return {
            "flat": self.flat.clone(),
            "grad": self.grad.clone() if self._spec.strategy.payload == "gradient" else None,
            "buffers": [buffer.clone() for buffer in self.model.buffers()],
            "optimizer": {name: value.clone() for name, value in self.moments.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.flat.copy_(state["flat"])
        if state["grad"] is not None:
            self.grad.copy_(state["grad"])
        for buffer, saved in zip(self.model.buffers(), state["buffers"], strict=True):
            buffer.copy_(saved)
        self.moments = {name: value.clone() for name, value in state["optimizer"].items()}


def _seed_torch(seed: int, device: str) -> None:
    """Seed the generators a step can draw from; `torch.manual_seed` keeps a stack trace per call for absent GPUs."""
    torch.default_generator.manual_seed(seed)
    if device.startswith("cuda"):
        torch.cuda.manual_seed(seed)

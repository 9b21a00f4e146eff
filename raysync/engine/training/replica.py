"""One worker's copy of the model, held as flat vectors: parameters and gradients are views, so nothing is copied to
be sent.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from raysync.blocks import Block, Content
from raysync.compress.base import all_finite
from raysync.engine.exchange import exchange_of
from raysync.engine.training.binding import Binding
from raysync.engine.training.norms import squared_norm
from raysync.errors import TaskError
from raysync.spec import JobSpec
from raysync.tasks.workload import WHOLE, Part, Workload

T = TypeVar("T")


class Replica:
    """Model, gradients and the worker's own optimizer.

    `flat` is the live parameter vector. What else is shared at a synchronisation (float buffers, averaged moments)
    is the vector `extras()`, made and loaded on demand.
    """

    def __init__(
        self,
        spec: JobSpec,
        workload: Workload,
        device: str = "cpu",
        *,
        is_trained: bool = True,
        module: nn.Module | None = None,
    ) -> None:
        """Hold the task's model, or a `module` made of it."""
        seed_generators(spec.seed, device)
        made = workload.task.model() if module is None else module
        if not isinstance(made, nn.Module):
            raise TaskError(workload.name, f"model() returned a {type(made).__name__}, not a torch.nn.Module")
        self._hold(spec, workload, made.to(device), device, Binding(workload.name, made))
        if is_trained:
            self.reset_optimizer()

    def _hold(self, spec: JobSpec, workload: Workload, model: nn.Module, device: str, binding: Binding) -> None:
        self._spec, self.workload, self.model, self._device, self._binding = spec, workload, model, device, binding
        self.optimizer = spec.optimizer
        self._server_owns = exchange_of(spec).server_steps
        self._buffer_slots = _buffer_slots(model)
        self.moments: dict[str, Tensor] = {}

    @property
    def flat(self) -> Tensor:
        """The live parameters."""
        return self._binding.flat

    @property
    def grad(self) -> Tensor:
        """The gradient of the last batch."""
        return self._binding.grad

    @property
    def own_lr(self) -> float | None:
        """The learning rate where it is not the job's to say."""
        return None

    @property
    def regions(self) -> tuple[tuple[Content, int], ...]:
        """The shared vector's make-up: parameters, float buffers, and moments where the job averages them."""
        buffers = sum(buffer.numel() for buffer in self._buffers)
        moments = sum(moment.numel() for moment in self.shared_moments)
        return (Content.PARAMETER, len(self.flat)), (Content.BUFFER, buffers), (Content.MOMENT, moments)

    @property
    def _buffers(self) -> list[Tensor]:
        """The float buffers as they are now: user code may well put new tensors in their places."""
        return [slot.find(self.workload.name) for slot in self._buffer_slots]

    @property
    def shared_moments(self) -> list[Tensor]:
        """The moments that are averaged with the parameters."""
        if self._spec.inner_state != "average":
            return []
        return [self.moments[name] for name in sorted(self.moments)]

    def describe(self, block: Block) -> str:
        """Return the names of the parameters a block holds, or what else it is."""
        if block.content is not Content.PARAMETER:
            return f"{block.content.value}s"
        names = [
            name
            for name, stretch in zip(self._binding.names, self._binding.stretches, strict=True)
            if stretch.start < block.stop and stretch.stop > block.start
        ]
        return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"

    def compute(self, indices: NDArray[np.int64], seed: int) -> float | None:
        """Leave the mean gradient over the samples in `grad` and return their mean loss; `seed` drives dropout and
        the like.
        """
        self._binding.mend(self._server_owns)
        seed_generators(seed, self._device)
        if not self.model.training:
            self.model.train()
        self.grad.zero_()
        loss = self.workload.task.loss(self.model, self.workload.batch(indices))
        loss.backward()  # type: ignore[no-untyped-call]
        self._binding.mend(self._server_owns, takes_gradients=True)
        return float(loss.detach())

    def rebind(self, flat: Tensor) -> None:
        """Train another vector from now on: no value is copied."""
        self._binding.rebind(flat)

    def step(self, lr: float) -> None:
        """Let the worker's own optimizer apply `grad`."""
        self.optimizer.update(self.flat, self.grad, self.moments, lr)

    def step_with_mean(self, lr: float) -> None:
        """Let the worker's own optimizer apply `grad`, which now holds the mean over all workers."""
        self.step(lr)

    def reset_optimizer(self) -> None:
        """Forget the optimizer's moments and step count."""
        self.moments = self.optimizer.state(self.flat)

    def grad_sq(self) -> float:
        """Return the squared L2 norm of the gradient."""
        return squared_norm(self.grad)

    def tensor_norms(self) -> float:
        """Return the sum of the L2 norms of the gradient's tensors."""
        return math.fsum(math.sqrt(squared_norm(self.grad[stretch])) for stretch in self._binding.stretches)

    def non_finite_gradient(self) -> str | None:
        """Return the name of the first parameter whose gradient holds a NaN or an infinity."""
        for name, stretch in zip(self._binding.names, self._binding.stretches, strict=True):
            if not bool(self.grad[stretch].isfinite().all()):
                return name
        return None

    def non_finite_parameter(self) -> str | None:
        """Return the name of the first parameter that holds a NaN or an infinity."""
        for name, stretch in zip(self._binding.names, self._binding.stretches, strict=True):
            if not all_finite(self.flat[stretch]):
                return name
        return None

    def is_finite(self) -> bool:
        """Return whether no parameter holds a NaN or an infinity."""
        return all_finite(self.flat)

    def extras(self) -> Tensor:
        """Return float buffers and shared moments as one vector."""
        return self.read_extras(0, sum(part.numel() for part in self._extra_parts))

    def read_extras(self, start: int, stop: int) -> Tensor:
        """Return a stretch of `extras()`; only what lies in it is read."""
        offset, found = 0, []
        for part in self._extra_parts:
            first, last = max(start - offset, 0), min(stop - offset, part.numel())
            if first < last:
                found.append(part.detach().reshape(-1)[first:last].float())
            offset += part.numel()
        return torch.cat(found) if found else self.flat.new_empty(0)

    def load_extras(self, extras: Tensor) -> None:
        """Write a vector made like `extras()` back into buffers and moments; without moments its beginning will do."""
        offset = 0
        for part in self._extra_parts:
            values = extras[offset : offset + part.numel()].view_as(part)
            if part.dtype is not torch.float32:  # which may hold what fp32 cannot: what has not changed stays as it is
                values = torch.where(values == part.float(), part, values.to(part.dtype))
            if not torch.equal(part, values):  # constant ones may be expanded, and then cannot be written to
                part.copy_(values)
            offset += part.numel()

    @property
    def _extra_parts(self) -> list[Tensor]:
        return [*self._buffers, *self.shared_moments]

    def evaluate(self, flat: Tensor, extras: Tensor, part: Part = WHOLE) -> dict[str, float]:
        """Return the metrics of the given parameters and buffers over a part of the evaluation data."""
        with self._wearing(flat, extras):
            return self.workload.evaluate(self.model, part)

    def num_judged(self, part: Part) -> int:
        """Return how many samples of the evaluation data a part has."""
        return len(part.of(len(self.workload.eval_data)))

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
            self._binding.mend()
        finally:
            if is_other:
                self.flat.copy_(own_flat)
            self.load_extras(own_extras)

    def state_dict(self) -> dict[str, Any]:
        """Return parameters, buffers and the optimizer's state."""
        return {
            "flat": self.flat.clone(),
            "grad": self.grad.clone() if exchange_of(self._spec).payload == "gradient" else None,
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


class _BufferSlot(NamedTuple):
    """A place in the model where a float buffer is registered."""

    registry: dict[str, Tensor | None]
    key: str
    name: str
    shape: torch.Size

    def find(self, task: str) -> Tensor:
        """Return the buffer that is there now."""
        found = self.registry.get(self.key)
        if found is None or found.shape != self.shape:
            now = "was removed" if found is None else f"became {tuple(found.shape)}"
            raise TaskError(task, f"buffer {self.name!r} {now}; it must stay {tuple(self.shape)} to be averaged")
        return found


def _buffer_slots(model: nn.Module) -> list[_BufferSlot]:
    slots: dict[int, _BufferSlot] = {}
    for prefix, module in model.named_modules():
        for key, buffer in module._buffers.items():
            if buffer is not None and buffer.is_floating_point():
                name = f"{prefix}.{key}" if prefix else key
                slots.setdefault(id(buffer), _BufferSlot(module._buffers, key, name, buffer.shape))
    return list(slots.values())


def seed_generators(seed: int, device: str) -> None:
    """Seed all generators a step can draw from, augmentation with numpy or Python's own among them.

    `torch.manual_seed` keeps a stack trace per call for absent GPUs; its default generator does not.
    """
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
    if device.startswith("cuda"):
        torch.cuda.manual_seed(seed)

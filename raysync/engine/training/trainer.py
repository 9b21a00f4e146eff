"""Training a step: the worker's next batch, its loss and gradient, and what the strategy's signal makes of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from raysync.address import Address
from raysync.control.view import View
from raysync.data import Indices, Sampler
from raysync.engine.exchange import exchange_of
from raysync.engine.messages import Skipped
from raysync.engine.ports import Probe
from raysync.engine.seeds import derive
from raysync.engine.training.divergence import Skips
from raysync.engine.training.norms import dot, norm, squared_norm
from raysync.engine.training.replica import Replica
from raysync.engine.training.shared_vector import SharedVector
from raysync.spec import JobSpec
from raysync.sync.signal import Meter, StepStats
from raysync.tasks.workload import WHOLE, Part, Workload

T = TypeVar("T")


class Computed(NamedTuple):
    """What a step came to."""

    loss: float | None
    samples: int
    values: tuple[float, ...]
    """What the strategy's meter reports."""
    skipped: Skipped | None = None
    """Why the batch counts for nothing, if it does not."""


class Trainer:
    """Computes steps of one worker; a strategy that listens to a signal has its meter here."""

    def __init__(
        self, address: Address, spec: JobSpec, workload: Workload, replica: Replica, shared: SharedVector, probe: Probe
    ) -> None:
        self._address, self._seed, self._exchange = address, spec.seed, exchange_of(spec)
        self._replica, self._shared, self._probe = replica, shared, probe
        labels = workload.labels() if spec.data.label_skew else None
        self._sampler = Sampler(spec.data, workload.num_samples, spec.seed, labels)
        self._signal = spec.strategy.needs.signal
        self._meter = self._signal.meter() if self._signal else Meter()
        self._direction: Tensor | None = None
        """Of the last synchronisation; random before the first."""
        self._last_visible: Tensor | None = None
        self._skips = Skips(address, spec.on_divergence)
        self._values: tuple[float, ...] | None = None
        """What the meter reported last."""

    def compute(self, view: View, step: int, lr: float, num_workers: int) -> Computed:
        """Compute one step on this worker's batch of a view's data."""
        indices = self.batch(view, step)
        loss = self._replica.compute(indices, derive(self._seed, "step", self._address.index, step))
        return self.finish(step, lr, num_workers, loss, len(indices))

    def batch(self, view: View, step: int) -> Indices:
        """Return which samples of a view's data this worker reads at a step."""
        return self._sampler.batch(view, self._address, step)

    def finish(
        self, step: int, lr: float, num_workers: int, loss: float | None, samples: int, spoilt: str = ""
    ) -> Computed:
        """A step's gradient is there: check it, let the optimizer have it where it steps at once, and listen. What is
        not finite, or `spoilt` for that reason, counts for nothing.
        """
        grad_sq = self._replica.grad_sq()
        problem, parameter = self._trouble(loss, grad_sq)
        self._probe("worker.computed")
        if problem or spoilt:
            return self._skip(step, num_workers, samples, problem or spoilt, parameter)
        needs_norms = self._signal is not None and self._signal.needs_tensor_norms
        norms = self._replica.tensor_norms() if needs_norms else 0.0
        self._exchange.computed(self._replica, lr)
        self._values = self._meter.observe(self._with_drift(grad_sq, norms), num_workers)
        return Computed(loss, samples, self._values)

    def _skip(self, step: int, num_workers: int, samples: int, problem: str, parameter: str) -> Computed:
        """Leave weights and moments as they are, send a gradient of zeros, and report what the meter last reported."""
        skipped = self._skips.add(step, problem, parameter)
        self._replica.grad.zero_()
        self._shared.mend_extras()
        if self._exchange.payload == "displacement" and not self._replica.is_finite():
            self._shared.drop_progress()
        if self._values is None:
            self._values = self._meter.observe(self._with_drift(0.0, 0.0), num_workers)
        return Computed(None, samples, self._values, skipped)

    def drop_progress(self, step: int, round: int, why: str) -> Skipped:
        """What a round was to carry is not finite: go back to what all workers see, and carry nothing."""
        skipped = self._skips.add(step, why, self._replica.non_finite_parameter() or "")
        self._shared.drop_progress(round)
        return skipped

    def evaluate(self, part: Part = WHOLE) -> dict[str, float]:
        """Return the metrics of the model all workers see (of this replica, where they share only gradients) over a
        part of the evaluation data.
        """
        shown = self._exchange.shown(self._replica, self._shared)
        return self._replica.evaluate(shown, self._shared.visible_extras, part)

    def shown(self) -> Tensor:
        """Return the parameters and buffers of that model, one after the other."""
        return torch.cat([self._exchange.shown(self._replica, self._shared), self._shared.visible_extras])

    def num_judged(self, part: Part) -> int:
        """Return how many samples of the evaluation data a part has."""
        return self._replica.num_judged(part)

    def show_model(self, look: Callable[[dict[str, Any]], T]) -> T:
        """Let `look` see the state_dict of the model that `evaluate` judges, and return what it returns."""
        shown = self._exchange.shown(self._replica, self._shared)
        return self._replica.show_model(shown, self._shared.visible_extras, look)

    def round_begins(self) -> None:
        """A synchronisation is about to change what all workers see."""
        if self._signal is not None and self._signal.needs_drift:
            self._last_visible = self._shared.visible.clone()

    def round_ends(self) -> None:
        """It has; remember where it went."""
        if self._last_visible is not None:
            moved = self._shared.visible - self._last_visible
            length = norm(moved)
            self._direction = moved / length if length > 0 else self._direction
            self._last_visible = None

    def _trouble(self, loss: float | None, grad_sq: float) -> tuple[str, str]:
        """Return what is not finite, and of which parameter: at the step it happens, not when it is sent."""
        is_broken = loss is not None and not math.isfinite(loss)
        name = None if math.isfinite(grad_sq) else self._replica.non_finite_gradient()
        if loss is not None and is_broken:
            return f"the loss is {'NaN' if math.isnan(loss) else 'infinite'}", name or ""
        if name is None:
            return "", ""
        told = "" if loss is None else f" though the loss is {loss:.4g}"
        return f"the gradient of {name} holds a NaN or an infinity{told}", name

    def _with_drift(self, grad_sq: float, tensor_norms: float) -> StepStats:
        if self._signal is None or not self._signal.needs_drift:
            return StepStats(grad_sq, tensor_norms)
        drift = self._replica.flat - self._shared.visible
        if self._direction is None:
            generator = torch.Generator().manual_seed(derive(self._seed, "direction"))
            noise = torch.randn(len(drift), generator=generator)
            self._direction = noise / norm(noise)
        return StepStats(grad_sq, tensor_norms, squared_norm(drift), dot(drift, self._direction))

    def state_dict(self) -> dict[str, Any]:
        """Return the meter's state and the last direction."""
        direction = None if self._direction is None else self._direction.clone()
        own = {"skips": self._skips.state_dict(), "values": None if self._values is None else list(self._values)}
        return {"meter": self._meter.state_dict(), "direction": direction, **own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self._meter.load_state_dict(state["meter"])
        self._direction = state["direction"]
        self._skips.load_state_dict(state.get("skips", []))
        values = state.get("values")
        self._values = None if values is None else tuple(values)

"""`grad_change`: the relative change of the smoothed gradient norm, SelSync's own signal.

Smoothing is the authors' windowed average: the last W values with weights (1 - alpha)^k, k = 1 for the newest,
normalised. Which comes first, smoothing or change, decides how often it fires; the paper smooths the norm, then
takes the change.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from raysync.sync.signal.base import Meter, Signal, StepStats

if TYPE_CHECKING:
    from raysync.address import Address
    from raysync.sync.base import StepContext


class GradChange(Signal):
    """Delta = |E[n_i] - E[n_{i-1}]| / E[n_{i-1}]; the score is the largest over the workers, so any one can call a
    synchronisation.
    """

    kind: Literal["grad_change"] = "grad_change"
    norm: Literal["squared", "l2", "tensor_sum"] = "squared"
    """n: the squared norm (paper's formula), the norm (paper's text), or the sum of the tensors' norms (released
    code).
    """
    order: Literal["smooth_change", "change_smooth", "smooth_change_smooth"] = "smooth_change"
    """Smooth then change (paper), change then smooth, or smooth, change and smooth again (released code)."""
    window: int = Field(default=25, ge=1)
    alpha: float | None = Field(default=None, gt=0, le=1)
    """Weight of the newest value; default: number of workers / 100, at most 1."""

    @property
    def warmup_steps(self) -> int:
        return self.window

    @property
    def needs_tensor_norms(self) -> bool:
        return self.norm == "tensor_sum"

    def meter(self) -> Meter:
        return GradMeter(self)

    def score(self, context: StepContext) -> float:
        return max((value[0] for value in context.values if value), default=math.inf)

    def by_worker(self, context: StepContext) -> dict[Address, float]:
        if len(context.values) != len(context.members):
            return {}  # whoever has just joined has reported nothing yet
        return {who: value[0] for who, value in zip(context.members, context.values, strict=True) if value}


class GradMeter(Meter):
    """The two windows behind one worker's Delta."""

    def __init__(self, signal: GradChange) -> None:
        self._signal = signal
        self._norms: deque[float] = deque(maxlen=signal.window + 1)
        self._changes: deque[float] = deque(maxlen=signal.window)

    def observe(self, stats: StepStats, num_workers: int) -> tuple[float]:
        signal = self._signal
        alpha = signal.alpha if signal.alpha is not None else min(1.0, num_workers / 100)
        self._norms.append(
            {"squared": stats.grad_sq, "l2": math.sqrt(stats.grad_sq), "tensor_sum": stats.tensor_norms}[signal.norm]
        )
        norms = list(self._norms)
        if signal.order == "change_smooth":
            change = relative_change(norms[-2:])
        else:
            smoothed = [
                ewma(norms[max(0, end - signal.window) : end], alpha) for end in (len(norms) - 1, len(norms)) if end > 0
            ]
            change = relative_change(smoothed)
        if signal.order == "smooth_change":
            return (change,)
        if math.isfinite(change):
            self._changes.append(change)
            return (ewma(list(self._changes), alpha),)
        return (change,)

    def state_dict(self) -> dict[str, list[float]]:
        return {"norms": list(self._norms), "changes": list(self._changes)}

    def load_state_dict(self, state: dict[str, list[float]]) -> None:
        self._norms = deque(state["norms"], maxlen=self._norms.maxlen)
        self._changes = deque(state["changes"], maxlen=self._changes.maxlen)


def ewma(values: Sequence[float], alpha: float) -> float:
    """Return the weighted mean of `values`, oldest first, with weights (1 - alpha)^k, k = 1 for the newest."""
    if alpha >= 1:
        return values[-1]
    weights = [(1 - alpha) ** (len(values) - index) for index in range(len(values))]
    return sum(weight * value for weight, value in zip(weights, values, strict=True)) / sum(weights)


def relative_change(pair: Sequence[float]) -> float:
    """Return |new - old| / old; infinite, which calls for a synchronisation, where there is no old or it is zero or
    not finite.
    """
    if len(pair) < 2 or pair[0] == 0 or not all(map(math.isfinite, pair)):
        return math.inf
    return abs(pair[1] - pair[0]) / pair[0]

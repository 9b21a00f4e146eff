"""`divergence`: how far the replicas have drifted apart, the quantity that averaging repairs (FDA, EDBT 2025).

With u_k = w_k - w_sync and xi the unit vector between the last two synchronised points, the score S = mean
||u_k||^2 - (mean <xi, u_k>)^2 over-estimates the variance mean ||u_k||^2 - ||mean u_k||^2, so no needed
synchronisation is missed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from raysync.sync.signal.base import Meter, Signal, StepStats

if TYPE_CHECKING:
    from raysync.sync.base import StepContext


class Divergence(Signal):
    """Two numbers per worker and step; `delta` is FDA's Theta, in squared parameter units."""

    kind: Literal["divergence"] = "divergence"
    needs_drift: ClassVar[bool] = True

    def meter(self) -> Meter:
        return DriftMeter()

    def score(self, context: StepContext) -> float:
        values = [value for value in context.values if value]
        if not values:
            return float("inf")
        mean_sq = sum(value[0] for value in values) / len(values)
        mean_along = sum(value[1] for value in values) / len(values)
        return max(0.0, mean_sq - mean_along**2)


class DriftMeter(Meter):
    """Passes the two drift numbers on."""

    def observe(self, stats: StepStats, num_workers: int) -> tuple[float, float]:
        return stats.drift_sq, stats.drift_along

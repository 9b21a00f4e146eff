"""`async_sparse`: replicas never wait; a rotating part of the weights is averaged between them and lands steps later,
corrected by how far a replica usually moves meanwhile.

AsyncMesh (Ajanthan et al. 2026). In round t a replica sends part t mod c of its weights, c = ceil(1 / sparse_fraction).
When the mean A comes back, tau steps later, and the replica has moved from u to w there:

    E = beta E + (1 - beta) (w - u) / tau;     w = A + tau E

With k = floor(tau / c) flights of one coordinate in the air at once the replicas' disagreement obeys
e[n+1] = e[n] - (1 - beta) e[n-k], which is stable iff 1 - beta < 2 sin(pi / (2 (2k + 1))).
"""

from __future__ import annotations

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from raysync.sync.base import Choice, Needs, StepContext, Strategy
from raysync.value import whole


class AsyncSparse(Strategy):
    """Asynchronous sparse averaging: no replica waits for another."""

    kind: Literal["async_sparse"] = "async_sparse"
    sparse_fraction: float = Field(default=0.05, gt=0, le=1)
    """Fraction of the weights averaged per step."""
    staleness_bound: int = Field(default=10, ge=0)
    """tau: a mean that comes back more steps after it was begun is dropped, and counted."""
    ema_beta: float = Field(default=0.5, ge=0, lt=1)
    """Share of the old displacement kept by the correction."""
    ema_final_beta: float = Field(default=0.99, ge=0, lt=1)
    """What `ema_beta` becomes by the last step, along a half cosine; never less than `ema_beta` itself."""
    ema_hold_steps: int = Field(default=1000, ge=0)
    """For so many steps it stays as it is."""
    landing: Literal["ema", "delta_rule", "overwrite"] = "ema"
    """How a mean lands: corrected by the moving average, by the replica's own last displacement (beta 0), or as it is;
    the latter two as controls.
    """

    @property
    def num_parts(self) -> int:
        """c: how many rounds it takes to average every weight once."""
        return -whole(-1 / self.sparse_fraction)

    @property
    def needs(self) -> Needs:
        return Needs(pacing="free_running", exchange="sparse_parts", decides_ahead=False)

    def beta_at(self, step: int, total_steps: int) -> float:
        """Return the share of the old displacement that is kept at a step."""
        if self.landing == "delta_rule":
            return 0.0
        final = max(self.ema_beta, self.ema_final_beta)
        length = max(1, total_steps - self.ema_hold_steps)
        progress = min(1.0, max(0, step - self.ema_hold_steps) / length)
        return final + (self.ema_beta - final) * 0.5 * (1 + math.cos(math.pi * progress))

    def decide(self, context: StepContext) -> Choice:
        return Choice(False, "replicas run on by themselves")

    @model_validator(mode="after")
    def _stable(self) -> Self:
        tau, count = self.staleness_bound, self.num_parts
        beta = {"ema": self.ema_beta, "delta_rule": 0.0, "overwrite": 1.0}[self.landing]
        if _is_stable(tau, count, beta):
            return self
        limit = stability_limit(tau // count)
        parts = next(c for c in range(count, tau + 2) if _is_stable(tau, c, beta))
        bound = next(t for t in range(tau, -1, -1) if _is_stable(t, count, beta))
        slower = f", or ema_beta: {math.floor((1 - limit) * 100) / 100 + 0.01:.2f}" if self.landing == "ema" else ""
        raise ValueError(
            f"sparse_fraction={self.sparse_fraction} ({count} parts) with staleness_bound={tau} puts {tau // count} "
            f"flights of a weight in the air at once, which diverges unless ema_beta > {1 - limit:.3f} "
            f"(here {beta}). Nearest that hold: sparse_fraction: {math.floor(1e4 / parts) / 1e4:g}, or "
            f"staleness_bound: {bound}{slower}"
        )


def stability_limit(flights: int) -> float:
    """Return what 1 - beta must stay below with so many earlier flights of a coordinate in the air."""
    return 2 * math.sin(math.pi / (2 * (2 * flights + 1)))


def _is_stable(staleness: int, parts: int, beta: float) -> bool:
    return 1 - beta < stability_limit(staleness // parts)

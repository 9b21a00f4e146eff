"""`ssp`: stale-synchronous parallel (Ho et al. 2013); a push is applied on arrival and a read may be stale, within
a bound.

A worker about to compute clock c may read once every live worker has pushed clock c - s - 1; s = 0 is lock-step.
Each push steps the user's optimizer, which lives on the server, at lr / N: N pushes move the model as far as one
`bsp` step.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from raysync.optim import AnyOptimizer
from raysync.sync.base import Choice, Needs, StepContext, Strategy


class SSP(Strategy):
    """Workers keep their own clocks; the coordinator, not the strategy, enforces the bound."""

    kind: Literal["ssp"] = "ssp"
    staleness_bound: int = Field(default=3, ge=0)

    @property
    def needs(self) -> Needs:
        return Needs("bounded", "gradient", staleness_limit=self.staleness_bound)

    def decide(self, context: StepContext) -> Choice:
        return Choice(True, f"ssp pushes every step and reads within {self.staleness_bound} clocks")

    def default_outer(self, optimizer: AnyOptimizer) -> AnyOptimizer:
        return optimizer

"""`diloco`: H local steps with the user's optimizer, then an outer Nesterov step on the mean displacement.

Douillard et al. 2023. Outer gradient = visible - mean(local), lr 0.7, momentum 0.9; `local_sgd` is the case lr 1,
momentum 0.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from raysync.optim import SGD, AnyOptimizer
from raysync.sync.base import Averaging, Choice, StepContext


class DiLoCo(Averaging):
    """Distributed low-communication training."""

    kind: Literal["diloco"] = "diloco"
    sync_every: int = Field(default=100, ge=1)
    """H: local steps between two outer steps; the paper uses 500 on runs of tens of thousands of steps."""

    def decide(self, context: StepContext) -> Choice:
        done = context.since_sync >= self.sync_every
        return Choice(done, f"{context.since_sync} of {self.sync_every} local steps done")

    def default_outer(self, optimizer: AnyOptimizer) -> AnyOptimizer:
        return SGD(lr=0.7, momentum=0.9, nesterov=True)

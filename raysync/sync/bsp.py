"""`bsp`: bulk-synchronous; every step the mean gradient goes through the user's optimizer, which lives on the
server.
"""

from __future__ import annotations

from typing import Literal

from raysync.optim import SGD, AnyOptimizer
from raysync.sync.base import Choice, Needs, StepContext, Strategy


class BSP(Strategy):
    """Equal to single-process training on the joined batch."""

    kind: Literal["bsp"] = "bsp"
    relay: bool = False
    """Hand the mean gradient back and let every worker's own optimizer step with it, as DDP does."""

    @property
    def needs(self) -> Needs:
        return Needs(exchange="relayed_gradient" if self.relay else "gradient")

    def decide(self, context: StepContext) -> Choice:
        return Choice(True, "bsp synchronises at every step")

    def default_outer(self, optimizer: AnyOptimizer) -> AnyOptimizer:
        return SGD(lr=1.0) if self.relay else optimizer

"""`bsp`: bulk-synchronous; every step the mean gradient goes through the user's optimizer, which lives on the
server.
"""

from __future__ import annotations

from typing import Literal

from raysync.optim import AnyOptimizer
from raysync.sync.base import Choice, PayloadKind, StepContext, Strategy


class BSP(Strategy):
    """Equal to single-process training on the joined batch."""

    kind: Literal["bsp"] = "bsp"

    @property
    def payload(self) -> PayloadKind:
        return "gradient"

    def decide(self, context: StepContext) -> Choice:
        return Choice(True, "bsp synchronises at every step")

    def default_outer(self, optimizer: AnyOptimizer) -> AnyOptimizer:
        return optimizer

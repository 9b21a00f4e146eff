"""`fedavg`: every E epochs a random fraction C of the workers is averaged, weighted by samples; all adopt the mean.

E follows the SelSync paper: 0.25 means four averagings per pass over the data. Workers that were not drawn train on
as well, but what they did since the last averaging is dropped with their old parameters, as if they had sat the
round out.
"""

from __future__ import annotations

import random
from typing import Literal

from pydantic import Field

from raysync.address import Address
from raysync.sync.base import Averaging, Choice, StepContext
from raysync.value import whole


class FedAvg(Averaging):
    """Federated averaging (McMahan et al. 2017)."""

    kind: Literal["fedavg"] = "fedavg"
    participation: float = Field(default=1.0, gt=0, le=1)
    """C: the fraction of workers that contribute to an averaging (at least one)."""
    local_epochs: float = Field(default=0.25, gt=0, allow_inf_nan=False)
    """E: passes over the data, by all workers together, between two averagings."""
    sync_every: int | None = Field(default=None, ge=1)
    """Steps between two averagings; replaces `local_epochs` where given."""

    def decide(self, context: StepContext) -> Choice:
        interval = self.sync_every or max(1, round(self.local_epochs * context.steps_per_lap))
        if context.since_sync < interval:
            return Choice(False, f"{context.since_sync} of {interval} local steps done")
        drawn = self._draw(context)
        return Choice(
            True, f"{interval} local steps done; averaging {len(drawn)} of {len(context.members)} workers", drawn
        )

    def _draw(self, context: StepContext) -> tuple[Address, ...]:
        count = max(1, whole(self.participation * len(context.members)))
        generator = random.Random(f"fedavg/{context.seed}/{context.step}")
        return tuple(sorted(generator.sample(context.members, count)))

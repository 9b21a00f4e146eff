"""`local_sgd`: parameters are averaged every H steps; post-local switch and the quadratic rule (QSR) as options.

QSR (Gu et al., ICLR 2024): H = max(sync_every, floor((qsr_alpha / lr)^2)), recomputed only right after an
averaging.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from raysync.sync.base import Averaging, Choice, StepContext
from raysync.value import whole


class LocalSGD(Averaging):
    """Local SGD (Stich 2019), post-local SGD (Lin et al. 2020), QSR."""

    kind: Literal["local_sgd"] = "local_sgd"
    sync_every: int = Field(default=8, ge=1)
    """H: steps between two averagings."""
    post_local_after: int = Field(default=0, ge=0)
    """Average at every step before this one; normally the first decay of the learning rate."""
    qsr_alpha: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Grow H as the learning rate falls; about 0.2 to 0.3 for SGD, 0.01 to 0.02 for AdamW."""

    def decide(self, context: StepContext) -> Choice:
        interval, why = self._interval(context)
        if context.since_sync < interval:
            return Choice(False, f"{context.since_sync} of {interval} local steps done ({why})")
        return Choice(True, f"{interval} local steps done ({why})")

    def _interval(self, context: StepContext) -> tuple[int, str]:
        first = context.last_sync_step + 1
        if first < self.post_local_after:
            return 1, f"every step until {self.post_local_after}"
        if self.qsr_alpha is None:
            return self.sync_every, "fixed interval"
        lr = context.lr_at(first)
        longest = max(1, context.total_steps - first)
        grown = longest if lr == 0 else whole(min(longest, (self.qsr_alpha / lr) ** 2))
        return max(self.sync_every, grown), f"qsr at lr {lr:.3g}"

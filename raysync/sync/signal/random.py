"""`random`: fires with a fixed probability, whatever the gradients do; the control that shows whether timing
matters.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from raysync.sync.signal.base import Signal

if TYPE_CHECKING:
    from raysync.sync.base import StepContext


class Random(Signal):
    """The score is 1 with probability `rate`, else 0; pure in the job's seed and the step."""

    kind: Literal["random"] = "random"
    has_threshold: ClassVar[bool] = False
    rate: float = Field(gt=0, le=1)
    """Share of steps that synchronise."""

    def score(self, context: StepContext) -> float:
        return float(random.Random(f"random/{context.seed}/{context.step}").random() < self.rate)

    def fires(self, score: float, delta: float) -> tuple[bool, str]:
        return score > 0, f"drawn with rate {self.rate:.4g}: {'yes' if score > 0 else 'no'}"

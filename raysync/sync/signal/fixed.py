"""`fixed`: fires at a fixed rate, evenly spaced; the other control beside `random`."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from raysync.sync.signal.base import Signal
from raysync.value import whole

if TYPE_CHECKING:
    from raysync.sync.base import StepContext


class Fixed(Signal):
    """Fires whenever the integer part of rate * (step + 1) grows, which spaces any rate evenly."""

    kind: Literal["fixed"] = "fixed"
    has_threshold: ClassVar[bool] = False
    rate: float = Field(gt=0, le=1)
    """Share of steps that synchronise."""

    def score(self, context: StepContext) -> float:
        return float(whole(self.rate * (context.step + 1)) > whole(self.rate * context.step))

    def fires(self, score: float, delta: float) -> tuple[bool, str]:
        return score > 0, f"fixed rate {self.rate:.4g}: {'its turn' if score > 0 else 'not yet'}"

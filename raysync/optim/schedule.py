"""Learning-rate schedules: a factor in [0, 1] as a pure function of the step, multiplied with `lr`."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from raysync.value import Value


class Constant(Value):
    """The factor is 1 after an optional linear warm-up."""

    kind: Literal["constant"] = "constant"
    warmup_steps: int = Field(default=0, ge=0)

    def factor(self, step: int, total_steps: int) -> float:
        """Return the multiplier of `lr` at `step`."""
        return _warmup(step, self.warmup_steps)


class Cosine(Value):
    """From 1 down to `final_ratio` along a half cosine, after an optional linear warm-up."""

    kind: Literal["cosine"] = "cosine"
    warmup_steps: int = Field(default=0, ge=0)
    final_ratio: float = Field(default=0.1, ge=0, le=1)

    def factor(self, step: int, total_steps: int) -> float:
        """Return the multiplier of `lr` at `step`."""
        length = max(1, total_steps - self.warmup_steps)
        progress = min(1.0, max(0, step - self.warmup_steps) / length)
        cosine = 0.5 * (1 + math.cos(math.pi * progress))
        return _warmup(step, self.warmup_steps) * (self.final_ratio + (1 - self.final_ratio) * cosine)


class StepDecay(Value):
    """Multiplied by `gamma` at each milestone step."""

    kind: Literal["step_decay"] = "step_decay"
    warmup_steps: int = Field(default=0, ge=0)
    milestones: tuple[int, ...] = Field(min_length=1)
    gamma: float = Field(default=0.1, gt=0, le=1)

    def factor(self, step: int, total_steps: int) -> float:
        """Return the multiplier of `lr` at `step`."""
        passed = sum(step >= milestone for milestone in self.milestones)
        return float(_warmup(step, self.warmup_steps) * self.gamma**passed)


AnyLRSchedule = Annotated[Constant | Cosine | StepDecay, Field(discriminator="kind")]


def _warmup(step: int, warmup_steps: int) -> float:
    return min(1.0, (step + 1) / (warmup_steps + 1))

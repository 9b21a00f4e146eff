"""`selsync`: synchronise only when some worker's gradient has changed enough (Tyagi & Swany, CLUSTER 2023).

Each worker's meter turns its own gradient into a number; the step synchronises when the score made of all of them
is at least `delta`. With `grad_change` that is Delta = |E[n_i] - E[n_{i-1}]| / E[n_{i-1}], n the squared norm and E
a windowed moving average, and the score is the largest Delta. delta = 0 synchronises always, delta = inf never.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from raysync.sync.base import Choice, PayloadKind, StepContext, Strategy
from raysync.sync.signal import AnySignal, GradChange
from raysync.value import Threshold

_ADAPTATION = 0.5
"""How fast the target-rate controller moves: delta changes by this share of the rate error per step, on a log scale."""


class SelSync(Strategy):
    """Selective synchronisation."""

    kind: Literal["selsync"] = "selsync"
    delta: Threshold = Field(default=0.3, ge=0)
    """The threshold; 0 synchronises at every step, inf at none."""
    aggregate: Literal["parameters", "gradients"] = "parameters"
    """Average parameters after the local step (the paper's choice), or gradients, which leaves replicas where they
    are.
    """
    overlap: bool = False
    """Decide from the previous step's signals, so that no worker waits for the answer."""
    signal: Annotated[AnySignal, Field(discriminator="kind")] = GradChange()
    warmup_steps: int | None = Field(default=None, ge=0)
    """Synchronise at each of the first steps; default: until the signal's window is full."""
    min_interval: int = Field(default=1, ge=1)
    """Never synchronise sooner than this many steps after the last time."""
    max_interval: int | None = Field(default=None, ge=1)
    """Synchronise after this many steps at the latest."""
    target_lssr: float | None = Field(default=None, ge=0, lt=1)
    """Move the threshold, starting from `delta`, so that this share of steps stays local."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if math.isnan(self.delta):
            raise ValueError("delta is not a number; give a threshold >= 0, or inf for never")
        if self.max_interval is not None and self.max_interval < self.min_interval:
            raise ValueError(f"max_interval={self.max_interval} must be >= min_interval={self.min_interval}")
        if self.target_lssr is not None and not (self.signal.has_threshold and 0 < self.delta < math.inf):
            raise ValueError(
                "target_lssr needs a signal with a threshold and a finite starting delta > 0, for example delta: 0.3"
            )
        return self

    @property
    def payload(self) -> PayloadKind:
        return "gradient" if self.aggregate == "gradients" else "delta"

    @property
    def relays(self) -> bool:
        return self.aggregate == "gradients"

    @property
    def decides_ahead(self) -> bool:
        return self.overlap

    def decide(self, context: StepContext) -> Choice:
        warmup_steps = self.signal.warmup_steps if self.warmup_steps is None else self.warmup_steps
        if context.step < warmup_steps:
            return Choice(True, f"warm-up: step {context.step} of {warmup_steps}", memory=context.memory)
        score = self.signal.score(context)
        delta = context.memory.get("delta", self.delta)
        fired, compared = self.signal.fires(score, delta)
        memory = {"delta": self._adapt(delta, fired)} if self.target_lssr is not None else {}
        if context.since_sync < self.min_interval:
            return Choice(
                False, f"{context.since_sync} steps since the last, at least {self.min_interval}", None, score, memory
            )
        if self.max_interval is not None and context.since_sync >= self.max_interval:
            return Choice(
                True, f"{context.since_sync} steps since the last, at most {self.max_interval}", None, score, memory
            )
        return Choice(fired, compared, None, score, memory)

    def _adapt(self, delta: float, fired: bool) -> float:
        """Track the (target_lssr)-quantile of the score: up after a firing, down a little after none."""
        wanted = 1 - (self.target_lssr or 0.0)
        return delta * math.exp(_ADAPTATION * ((1.0 if fired else 0.0) - wanted))

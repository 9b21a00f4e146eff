"""`selsync`: synchronise only when some worker's gradient has changed enough (Tyagi & Swany, CLUSTER 2023).

Each worker's meter turns its own gradient into a number; the step synchronises when the score made of all of them
is at least `delta`. With `grad_change` that is Delta = |E[n_i] - E[n_{i-1}]| / E[n_{i-1}], n the squared norm and E
a windowed moving average, and the score is the largest Delta. delta = 0 synchronises always, delta = inf never.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from raysync.sync.base import Choice, Needs, StepContext, Strategy
from raysync.sync.signal import AnySignal, GradChange
from raysync.value import Threshold

QUIET_STEPS = 100
"""A signal that has not called for a synchronisation for so long is worth a word; and where the job says nothing
else, replicas do not train apart for longer: what is evaluated is the last synchronised model.
"""
_LONGEST_GAPS = 4
"""With a target rate the longest gap is so many times the mean one."""
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
    """Synchronise after this many steps at the latest; default: 100, longer where `target_lssr` asks for longer gaps,
    and never for delta inf or a signal with a rate of its own.
    """
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
    def needs(self) -> Needs:
        exchange = "relayed_gradient" if self.aggregate == "gradients" else "displacement"
        return Needs(exchange=exchange, decides_ahead=self.overlap, signal=self.signal)

    @property
    def longest_gap(self) -> int | None:
        """How many steps may pass without a synchronisation; None for any number."""
        if self.max_interval is not None:
            return self.max_interval
        if not self.signal.has_threshold or self.delta == math.inf:
            return None
        wanted = 0 if self.target_lssr is None else math.ceil(_LONGEST_GAPS / (1 - self.target_lssr))
        return max(QUIET_STEPS, wanted, self.min_interval)

    def decide(self, context: StepContext) -> Choice:
        warmup_steps = self.signal.warmup_steps if self.warmup_steps is None else self.warmup_steps
        if context.step < warmup_steps:
            kept = {name: value for name, value in context.memory.items() if name == "delta"}
            return Choice(True, f"warm-up: step {context.step} of {warmup_steps}", memory=kept)
        score = self.signal.score(context)
        delta = context.memory.get("delta", self.delta)
        fired, compared = self.signal.fires(score, delta)
        memory = {"delta": self._adapt(delta, fired)} if self.target_lssr is not None else {}
        memory |= _quiet(context.memory, fired, score)
        sync, reason = self._within_gaps(context.since_sync, fired, compared)
        return Choice(sync, reason, None, score, memory, self._notice(memory, delta))

    def _within_gaps(self, since_sync: int, fired: bool, compared: str) -> tuple[bool, str]:
        """Return the decision and its reason, whatever the signal says held within the gaps allowed."""
        if since_sync < self.min_interval:
            return False, f"{since_sync} steps since the last, at least {self.min_interval}"
        longest = self.longest_gap
        if longest is not None and since_sync >= longest and not fired:
            return True, f"{since_sync} steps since the last, at most {longest}"
        return fired, compared

    def _notice(self, memory: Mapping[str, float], delta: float) -> str | None:
        """Return a word about a signal that never fires: after 100 steps, then each time twice as many."""
        quiet = round(memory["quiet"])
        is_due = quiet >= QUIET_STEPS and quiet % QUIET_STEPS == 0 and (quiet // QUIET_STEPS).bit_count() == 1
        if not is_due or not self.signal.has_threshold or delta == math.inf:
            return None
        forced = "" if self.longest_gap is None else f", so only every {self.longest_gap} steps"
        return (
            f"the signal has called for no synchronisation for {quiet} steps{forced}: largest score "
            f"{memory['top']:.2g}, delta {delta:.2g}; lower delta, or set max_interval or target_lssr"
        )

    def _adapt(self, delta: float, fired: bool) -> float:
        """Track the (target_lssr)-quantile of the score: up after a firing, down a little after none."""
        wanted = 1 - (self.target_lssr or 0.0)
        return delta * math.exp(_ADAPTATION * ((1.0 if fired else 0.0) - wanted))


def _quiet(memory: Mapping[str, float], fired: bool, score: float) -> dict[str, float]:
    """Return for how many steps the signal has not fired, and the largest score among them."""
    if fired:
        return {"quiet": 0.0, "top": 0.0}
    return {"quiet": memory.get("quiet", 0.0) + 1, "top": max(memory.get("top", 0.0), score)}

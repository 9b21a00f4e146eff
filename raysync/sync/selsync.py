"""`selsync`: synchronise only when some worker's gradient has changed enough (Tyagi & Swany, CLUSTER 2023).

Each worker's meter turns its own gradient into a number; the step synchronises when the score made of all of them
is at least `delta`. With `grad_change` that is Delta = |E[n_i] - E[n_{i-1}]| / E[n_{i-1}], n the squared norm and E
a windowed moving average, and the score is the largest Delta. delta = 0 synchronises always, delta = inf never.

With a threshold of one's own this fires in clusters and leaves long gaps, where evenly spaced averaging at equal rate
reaches more. `delta: auto` holds a rate and bounds the gaps on both sides; within them the signal chooses the step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from raysync.sync.base import Averaging, Choice, Needs, StepContext
from raysync.sync.signal import AnySignal, GradChange
from raysync.value import Threshold, whole

QUIET_STEPS = 100
"""A signal that has not called for a synchronisation for so long is worth a word; and where the job says nothing
else, replicas do not train apart for longer: what is evaluated is the last synchronised model.
"""
AUTO_LSSR = 0.85
"""The share of local steps that `delta: auto` holds where the job names none."""
_FIRST_DELTA = 0.1
"""Where `delta: auto` begins; the steps of the warm-up already move it."""
_AUTO_GAPS = (0.5, 1.5)
"""With `delta: auto` the shortest and the longest gap, in mean ones: no clusters, and no replica is left apart."""
_LONGEST_GAPS = 4
"""With a target rate but a threshold of one's own the longest gap is so many times the mean one."""
_ADAPTATION = 0.5
"""How fast the target-rate controller moves: delta changes by this share of the rate error per step, on a log scale."""


class SelSync(Averaging):
    """Selective synchronisation."""

    kind: Literal["selsync"] = "selsync"
    delta: Threshold = "auto"
    """The threshold; 0 synchronises at every step, inf at none. `auto` finds and moves it so that `target_lssr` (then
    0.85 by default) of the steps stay local, and keeps the gaps between half and one and a half of the mean one.
    """
    aggregate: Literal["parameters", "gradients"] = "parameters"
    """Average parameters after the local step (the paper's choice), or gradients, which leaves replicas where they
    are.
    """
    overlap: bool = False
    """Decide from the previous step's signals, so that no worker waits for the answer."""
    signal: Annotated[AnySignal, Field(discriminator="kind")] = GradChange()
    warmup_steps: int | None = Field(default=None, ge=0)
    """Synchronise at each of the first steps; default: until the signal's window is full, with delta auto evenly spaced
    so long.
    """
    min_interval: int | None = Field(default=None, ge=1)
    """Never synchronise sooner than so many steps after the last time; default: 1, with delta auto half a mean gap."""
    max_interval: int | None = Field(default=None, ge=1)
    """Synchronise after this many steps at the latest; default: 100, longer where `target_lssr` asks for longer gaps,
    with delta auto one and a half mean gaps, and never for delta inf or a signal with a rate of its own.
    """
    target_lssr: float | None = Field(default=None, ge=0, lt=1)
    """Move the threshold, starting from `delta`, so that this share of steps stays local."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.landing == "late" and self.aggregate == "gradients":
            raise ValueError(
                "landing='late' needs aggregate: parameters; a mean gradient that comes late is of a step that is over"
            )
        longest = self.longest_gap
        if longest is not None and longest < self.shortest_gap:
            raise ValueError(f"max_interval={longest} must be >= min_interval={self.shortest_gap}")
        if self.target_lssr is not None and not (self.signal.has_threshold and 0 < self._first_delta < math.inf):
            raise ValueError(
                "target_lssr needs a signal with a threshold, and delta auto or a finite starting value > 0"
            )
        return self

    @property
    def needs(self) -> Needs:
        exchange = "relayed_gradient" if self.aggregate == "gradients" else "displacement"
        late = self.landing == "late"
        return Needs(exchange=exchange, decides_ahead=self.overlap, signal=self.signal, lands_late=late)

    @property
    def _is_auto(self) -> bool:
        return self.delta == "auto" and self.signal.has_threshold

    @property
    def _first_delta(self) -> float:
        return _FIRST_DELTA if self.delta == "auto" else self.delta

    @property
    def _rate(self) -> float | None:
        """The share of steps to synchronise at; None where the threshold stays as it is."""
        if self.target_lssr is not None:
            return 1 - self.target_lssr
        return 1 - AUTO_LSSR if self._is_auto else None

    def _gap(self, index: int) -> float | None:
        """The shortest (0) or longest (1) gap of `delta: auto`; None where the job chose its threshold itself."""
        return _AUTO_GAPS[index] / self._rate if self._is_auto and self._rate else None

    @property
    def shortest_gap(self) -> int:
        """How many steps at least lie between two synchronisations."""
        if self.min_interval is not None:
            return self.min_interval
        derived = max(1, whole(self._gap(0) or 1))
        return derived if self.max_interval is None else min(derived, self.max_interval)

    @property
    def longest_gap(self) -> int | None:
        """How many steps may pass without a synchronisation; None for any number."""
        if self.max_interval is not None:
            return self.max_interval
        if not self.signal.has_threshold or self.delta == math.inf:
            return None
        derived = self._gap(1)
        if derived is not None:
            return max(-whole(-derived), self.shortest_gap)
        wanted = 0 if self.target_lssr is None else math.ceil(_LONGEST_GAPS / (1 - self.target_lssr))
        return max(QUIET_STEPS, wanted, self.shortest_gap)

    def decide(self, context: StepContext) -> Choice:
        warmup_steps = self.signal.warmup_steps if self.warmup_steps is None else self.warmup_steps
        delta = context.memory.get("delta", self._first_delta)
        score = self.signal.score(context)
        fired, compared = self.signal.fires(score, delta)
        if context.step < warmup_steps:
            sync, reason = self._warm_up(context, warmup_steps)
            adapted = {"delta": self._adapt(delta, fired)} if self._is_auto else {}
            kept = {name: value for name, value in context.memory.items() if name == "delta"}
            return Choice(sync, reason, memory=kept | adapted, scores=self.signal.by_worker(context))
        sync, reason = self._within_gaps(context.since_sync, fired, compared)
        memory = {"delta": self._adapt(delta, sync if self._is_auto else fired)} if self._rate is not None else {}
        memory |= _quiet(context.memory, fired, score)
        threshold = delta if self.signal.has_threshold else None
        scores = self.signal.by_worker(context)
        return Choice(sync, reason, None, score, memory, self._notice(memory, delta), threshold, scores)

    def _warm_up(self, context: StepContext, warmup_steps: int) -> tuple[bool, str]:
        """Return the decision while the signal cannot be trusted yet."""
        step = f"warm-up: step {context.step} of {warmup_steps}"
        if self.warmup_steps is not None or not self._is_auto:
            return True, step
        gap = min(max(round(1 / (self._rate or 1.0)), self.shortest_gap), self.longest_gap or context.step + 1)
        return context.since_sync >= gap, f"{step}, {context.since_sync} of {gap} steps since the last"

    def _within_gaps(self, since_sync: int, fired: bool, compared: str) -> tuple[bool, str]:
        """Return the decision and its reason, whatever the signal says held within the gaps allowed."""
        if since_sync < self.shortest_gap:
            return False, f"{since_sync} steps since the last, at least {self.shortest_gap}"
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
            f"{memory['top']:.2g}, delta {delta:.2g}; lower delta, or set max_interval or delta: auto"
        )

    def _adapt(self, delta: float, counted: bool) -> float:
        """Return the threshold after a step: higher if it counted as a synchronisation, else a little lower, so that it
        stays where the wanted share of steps counts.
        """
        return delta * math.exp(_ADAPTATION * ((1.0 if counted else 0.0) - (self._rate or 0.0)))


def _quiet(memory: Mapping[str, float], fired: bool, score: float) -> dict[str, float]:
    """Return for how many steps the signal has not fired, and the largest score among them."""
    if fired:
        return {"quiet": 0.0, "top": 0.0}
    return {"quiet": memory.get("quiet", 0.0) + 1, "top": max(memory.get("top", 0.0), score)}

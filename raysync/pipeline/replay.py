"""A replayer of plans: carries out what every stage is to do, in virtual time, and shows that it ends.

A forward pass waits for that of the stage before, a backward pass for that of the stage after. A plan that cannot go on
raises; one that does is timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from raysync.errors import BrokenPlan
from raysync.pipeline.base import Kind, Op, Plan, Schedule


class Span(NamedTuple):
    """An operation as it ran."""

    stage: int
    op: Op
    start_s: float
    end_s: float


class Replayed(NamedTuple):
    """What a plan came to."""

    spans: tuple[Span, ...]
    """In order of their beginning."""
    peak_live: tuple[int, ...]
    """Of how many microbatches each stage held activations at most."""

    @property
    def duration_s(self) -> float:
        """From the first operation to the end of the last."""
        return max((span.end_s for span in self.spans), default=0.0)

    @property
    def bubble(self) -> tuple[float, ...]:
        """The share of the time in which each stage did nothing."""
        busy = [0.0] * len(self.peak_live)
        for span in self.spans:
            busy[span.stage] += span.end_s - span.start_s
        return tuple(1 - time_s / max(self.duration_s, 1e-12) for time_s in busy)


class Costs(NamedTuple):
    """How long things take."""

    forward_s: float = 1.0
    backward_s: float = 2.0
    step_s: float = 0.0
    latency_s: float = 0.0
    """From the end of a pass to its arrival at the neighbour."""

    def of(self, op: Op) -> float:
        """Return how long an operation takes."""
        return {Kind.FORWARD: self.forward_s, Kind.BACKWARD: self.backward_s, Kind.STEP: self.step_s}[op.kind]


UNIT = Costs()


def replay(plans: Sequence[Plan], costs: Costs = UNIT) -> Replayed:
    """Carry out the plans of all stages; raise `BrokenPlan` if they cannot be."""
    last = len(plans) - 1
    done: dict[tuple[int, Op], float] = {}
    position, free_s = [0] * len(plans), [0.0] * len(plans)
    live, peak_live = [0] * len(plans), [0] * len(plans)
    spans: list[Span] = []

    def begin_s(stage: int, op: Op) -> float | None:
        """Return when an operation could begin; None while something is missing."""
        needs: list[tuple[int, Op, float]] = []
        if op.kind is Kind.FORWARD and stage > 0:
            needs.append((stage - 1, op, costs.latency_s))
        if op.kind is Kind.BACKWARD:
            needs.append((stage, Op(Kind.FORWARD, op.microbatch), 0.0))
            if stage < last:
                needs.append((stage + 1, op, costs.latency_s))
        if op.kind is Kind.STEP:
            needs.append((stage, Op(Kind.BACKWARD, op.microbatch), 0.0))
        if any((who, what) not in done for who, what, _ in needs):
            return None
        return max([free_s[stage], *(done[who, what] + delay_s for who, what, delay_s in needs)])

    while any(position[stage] < len(plan) for stage, plan in enumerate(plans)):
        possible = [
            (start_s, stage)
            for stage, plan in enumerate(plans)
            if position[stage] < len(plan) and (start_s := begin_s(stage, plan[position[stage]])) is not None
        ]
        if not possible:
            waiting = [
                f"stage {stage} for {plan[position[stage]].kind.value} {plan[position[stage]].microbatch}"
                for stage, plan in enumerate(plans)
                if position[stage] < len(plan)
            ]
            raise BrokenPlan(f"no stage can go on: {', '.join(waiting)}")
        start_s, stage = min(possible)
        op = plans[stage][position[stage]]
        if (stage, op) in done:
            raise BrokenPlan(f"stage {stage} does {op.kind.value} {op.microbatch} twice")
        position[stage] += 1
        free_s[stage] = done[stage, op] = start_s + costs.of(op)
        live[stage] += {Kind.FORWARD: 1, Kind.BACKWARD: -1, Kind.STEP: 0}[op.kind]
        peak_live[stage] = max(peak_live[stage], live[stage])
        spans.append(Span(stage, op, start_s, free_s[stage]))
    if any(live):
        raise BrokenPlan(f"forward passes without backward pass, by stage: {live}")
    return Replayed(tuple(spans), tuple(peak_live))


def prove(schedule: Schedule, stages: int, count: int, costs: Costs = UNIT) -> Replayed:
    """Replay a schedule on so many stages and microbatches."""
    return replay([schedule.plan(stage, stages, count) for stage in range(stages)], costs)

"""A stage's place in its plan: what it does next, for which step, and whether it can.

A synchronous schedule has a plan for every step; how many microbatches that has, the first stage knows, and the others
learn with the first activation. An asynchronous one has one plan without end, in which every microbatch is a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from raysync.pipeline import Schedule
from raysync.pipeline.base import Kind, Op


class Todo(NamedTuple):
    """An operation with the step it belongs to."""

    kind: Kind
    step: int
    microbatch: int


class Line:
    """The plan of one stage, as far as it has come."""

    def __init__(self, schedule: Schedule, stage: int, stages: int) -> None:
        self._schedule, self._stage, self._stages = schedule, stage, stages
        self._order: Iterator[Op] | None = None
        self._first_step = 0
        self._next: Op | None = None

    @property
    def has_plan(self) -> bool:
        """Whether there is something to do that is known."""
        return self._next is not None

    def begin(self, step: int, count: int | None) -> None:
        """Plan from a step on: for its `count` microbatches, or asynchronously for so many steps."""
        self._first_step = step
        self._order = self._schedule.order(self._stage, self._stages, count)
        self._next = next(self._order, None)

    @property
    def todo(self) -> Todo | None:
        """What is next."""
        if self._next is None:
            return None
        kind, number = self._next
        if self._schedule.is_asynchronous:
            return Todo(kind, self._first_step + number, 0)
        return Todo(kind, self._first_step, number)

    def done(self) -> None:
        """It is done."""
        assert self._order is not None
        self._next = next(self._order, None)

    def forget(self) -> None:
        """There is no plan any more."""
        self._order = self._next = None

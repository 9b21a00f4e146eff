"""What is known of a trial: its point, how its jobs went, and what came of them."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec


class Kind(StrEnum):
    """Where a trial's point comes from."""

    OWN = "own"
    """the user's own job, which is always tried first"""
    DENSE = "dense"
    """everything sent at every step: what all others are compared with"""
    SEARCHED = "searched"
    """suggested by the search"""


class State(StrEnum):
    """How far a trial has come."""

    RUNNING = "RUNNING"
    REACHED = "REACHED"
    """it reached the floor"""
    MISSED = "MISSED"
    """it ran to its end without"""
    STOPPED = "STOPPED"
    """the scheduler stopped it early, or the study was stopped"""
    FAILED = "FAILED"

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come of it."""
        return self is not State.RUNNING


class Seen(msgspec.Struct, frozen=True):
    """One evaluation of a trial."""

    step: int
    quality: float
    """The floor's metric."""
    bytes: float
    """Payload sent until then, by all workers and shards."""
    time_s: float
    """Since the job's first step."""
    compute_s: float = 0.0
    """Time of one step's computing then."""


class Trial(msgspec.Struct, kw_only=True):
    """A point and what came of it."""

    number: int
    kind: Kind
    point: dict[str, Any]
    asked: int | None = None
    """Its number in the search's own books."""
    state: State = State.RUNNING
    reason: str = ""
    """Why it ended as it did, or what it waits for."""
    jobs: list[str] = []
    """Of its seeds, in their order."""
    seen: list[Seen] = []
    """The evaluations of its first seed."""
    rungs: list[int] = []
    """The steps at which the scheduler compared it with the others."""
    quality: float | None = None
    """At the end; the worst of its seeds."""
    cost: float | None = None
    """What it took to reach the floor: the mean over its seeds; None if one did not."""
    total_bytes: float | None = None
    """Payload of a whole job; the mean over its seeds."""
    took_s: float = 0.0
    """From its start to its end."""
    knob_version: int | None = None
    """How often its knobs were turned, where they were."""
    turned: dict[str, Any] = {}
    """The values its knobs had at the end, by path, where they were turned."""
    pids: dict[str, int] = {}
    """Processes of its first job's workers, as they last were."""

"""Which jobs may start now: the oldest of the highest priority, while fewer than the limit are live.

A job that waits is a row in the books and nothing else: no process, no place in the cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Queued(NamedTuple):
    """A job that has not been started."""

    id: str
    priority: int
    created_s: float

    @property
    def turn(self) -> tuple[int, float, str]:
        """What jobs are ordered by: a smaller one starts earlier."""
        return -self.priority, self.created_s, self.id


class Admission(NamedTuple):
    """The jobs that may start now, in order, and why the others wait."""

    ids: tuple[str, ...]
    reason: str


def admit(queued: Sequence[Queued], num_live: int, max_live: int) -> Admission:
    """Return which of the queued jobs may start while `num_live` others live."""
    room = max(0, max_live - num_live)
    ids = tuple(job.id for job in sorted(queued, key=lambda job: job.turn)[:room])
    return Admission(ids, f"{max_live} jobs live, as many as max_live_jobs allows; it waits for its turn")

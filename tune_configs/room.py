"""What the cluster holds while a study runs: nodes come and go, and trials follow."""

from __future__ import annotations

import time

from actors.job.cluster import grows, resources
from raysync.spec import JobSpec
from raysync.study.room import at_once, never

_MOST = 64
"""So many trials at once at most, each with a small process of Tune's on the head node."""
_LOOK_S = 2.0
_PATIENCE_S = 20.0
"""A node that went away may come back within so long."""


class Room:
    """How many jobs like a study's own fit at once, looked at now and then."""

    def __init__(self, spec: JobSpec, most: int | None) -> None:
        self._spec, self._most = spec, min(most or _MOST, _MOST)
        self._count, self._looked_s = 0, -_LOOK_S
        self._hopeless_s: dict[str, float] = {}
        self.peak = 1
        """The most that have fitted."""

    def count(self) -> int:
        """Return how many fit, one at least: a job that does not fit waits, and says why."""
        if time.monotonic() >= self._looked_s + _LOOK_S:
            self._looked_s = time.monotonic()
            _, total = resources()
            self._count = max(1, at_once(self._spec, total, self._most))
            self.peak = max(self.peak, self._count)
        return self._count

    def never(self, id: str, spec: JobSpec) -> str | None:
        """Return why a job that waits will wait for ever; None if it may start, or too little time has passed."""
        _, total = resources()
        reason = None if grows() else never(spec, total)
        if reason is None:
            self._hopeless_s.pop(id, None)
            return None
        since_s = self._hopeless_s.setdefault(id, time.monotonic())
        return reason if time.monotonic() >= since_s + _PATIENCE_S else None

"""The clock of a job's journal: seconds since the job's start, over all its lives, that never goes back.

The controller reads a wall clock. A coordinator counts from a start of its own, and from a checkpoint's time after a
recovery: its events are shifted by the difference of the two, measured whenever it answers.
"""

from __future__ import annotations

import math


class JobClock:
    """Times of a journal's records, in the order in which they are written."""

    def __init__(self, started_s: float, last_s: float = 0.0) -> None:
        self._started_s, self._last_s = started_s, last_s
        self._shift_s = math.inf

    def now(self, wall_s: float) -> float:
        """Return the time of a record of the controller's own."""
        return self._forward(wall_s - self._started_s)

    def answered(self, coordinator_s: float, wall_s: float) -> None:
        """A coordinator has answered with its own time: the quickest of its answers tells the difference best."""
        self._shift_s = min(self._shift_s, wall_s - self._started_s - coordinator_s)

    def restarted(self) -> None:
        """Another coordinator takes over; what is known of the clock of the one before is void."""
        self._shift_s = math.inf

    def of(self, coordinator_s: float) -> float:
        """Return the time of a record of the coordinator's."""
        return self._forward(coordinator_s + self._shift_s if math.isfinite(self._shift_s) else coordinator_s)

    def _forward(self, time_s: float) -> float:
        self._last_s = max(self._last_s, time_s)
        return self._last_s

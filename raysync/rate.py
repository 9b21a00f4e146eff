"""How fast something goes on: counted over the last seconds of whatever clock the counts come with."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

_WINDOW_S = 5.0
_MARKS = 25
"""So many points of the window are kept, however often it counts."""
_SKIPPED = 2
_ENOUGH_S = 1.0
_ENOUGH_COUNTS = 10
_PAUSE = 10.0
"""So many times longer than the others an interval is no work but a pause."""


class _Mark(NamedTuple):
    time_s: float
    total: float
    num_counts: int


class Rate:
    """Counts per second over a sliding window; unknown until there is enough to tell.

    What comes with the first count was done before the clock was looked at, and the second took long for reasons
    of its own (code is compiled, connections are made): counting begins after it, and anew after a pause. A window
    holds at least one interval, however long that was.
    """

    def __init__(self, window_s: float = _WINDOW_S) -> None:
        self._window_s = window_s
        self._marks: deque[_Mark] = deque()
        self._total, self._num_counts, self._last_s = 0.0, 0, 0.0
        self._num_skipped = 0

    def add(self, count: float, now_s: float) -> float | None:
        """Count, and return the rate; None while it is not known."""
        if self._num_skipped < _SKIPPED or self._was_pause(now_s):
            self._num_skipped += 1
            self._marks = deque([_Mark(now_s, self._total, self._num_counts)])
            self._last_s = now_s
            return None
        self._total, self._num_counts, self._last_s = self._total + count, self._num_counts + 1, now_s
        if now_s - self._marks[-1].time_s >= self._window_s / _MARKS:
            self._marks.append(_Mark(now_s, self._total, self._num_counts))
        while len(self._marks) > 2 and self._marks[1].time_s <= now_s - self._window_s:
            self._marks.popleft()
        first = self._marks[0]
        passed_s, counted = now_s - first.time_s, self._num_counts - first.num_counts
        is_known = passed_s >= _ENOUGH_S or (counted >= _ENOUGH_COUNTS and passed_s > 0)
        return (self._total - first.total) / passed_s if is_known else None

    def _was_pause(self, now_s: float) -> bool:
        first = self._marks[0]
        interval_s, counted = now_s - self._last_s, self._num_counts - first.num_counts
        if counted == 0 or interval_s <= self._window_s:
            return False
        return interval_s > _PAUSE * (self._last_s - first.time_s) / counted

"""The virtual clock: what is to happen, in order of time and, at one moment, of arrival."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Clock:
    """A queue of actions; time passes only from one to the next."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._queue: list[tuple[float, int, Callable[[], object]]] = []
        self._sequence = 0

    def at(self, time_s: float, action: Callable[[], object]) -> None:
        """Let something happen at a time."""
        heapq.heappush(self._queue, (time_s, self._sequence, action))
        self._sequence += 1

    def after(self, delay_s: float, action: Callable[[], object]) -> None:
        """Let something happen later."""
        self.at(self.now_s + delay_s, action)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left to happen."""
        return not self._queue

    def next(self) -> None:
        """Let the next thing happen."""
        self.now_s, _, action = heapq.heappop(self._queue)
        action()

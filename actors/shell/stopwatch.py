"""Times the worker core's named points: how long it computed, waited, encoded, and synchronised."""

from __future__ import annotations

import time


class Stopwatch:
    """A probe that adds up; `measured` returns the sums since the last call."""

    def __init__(self) -> None:
        self._at_s: dict[str, float] = {}
        self._sums: dict[str, float] = {}

    def begin(self) -> None:
        """A step begins."""
        self._at_s["begin"] = time.perf_counter()

    def __call__(self, point: str) -> None:
        """A point of the protocol is passed."""
        now_s = time.perf_counter()
        match point:
            case "worker.computed":
                self._add("time/compute_s", "begin", now_s)
            case "worker.decided":
                self._add("sync/wait_s", "worker.reported", now_s)
            case "worker.pushed":
                self._add("time/encode_s", "worker.decided", now_s)
            case "worker.synced":
                self._add("time/sync_s", "worker.pushed", now_s)
        self._at_s[point] = now_s

    def measured(self) -> dict[str, float]:
        """Return the sums since the last call, and begin anew."""
        sums, self._sums = self._sums, {}
        return sums

    def _add(self, name: str, since: str, now_s: float) -> None:
        if since in self._at_s:
            self._sums[name] = self._sums.get(name, 0.0) + now_s - self._at_s[since]

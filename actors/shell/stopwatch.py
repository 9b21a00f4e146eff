"""Times the worker core's named points: how long it computed, waited, encoded, and synchronised."""

from __future__ import annotations

import time


class Stopwatch:
    """A probe that adds up; `measured` returns the sums since the last call, for a stage with how busy it was."""

    def __init__(self, is_stage: bool = False) -> None:
        self._is_stage = is_stage
        self._busy_s = self._starved_s = 0.0
        self._since_s = time.perf_counter()
        self._starved_since_s: float | None = None
        self._at_s: dict[str, float] = {}
        self._sums: dict[str, float] = {}

    def begin(self) -> None:
        """A step, or an operation of a stage, begins."""
        self._at_s["begin"] = now_s = time.perf_counter()
        if self._starved_since_s is not None:
            self._starved_s += now_s - self._starved_since_s

    def ended(self, is_starved: bool) -> None:
        """It is over; a stage that could go on but for what its neighbours send is starved until the next begins."""
        now_s = time.perf_counter()
        self._busy_s += now_s - self._at_s["begin"]
        self._starved_since_s = now_s if is_starved else None

    def __call__(self, point: str) -> None:
        """A point of the protocol is passed."""
        now_s = time.perf_counter()
        match point:
            case "worker.computed" | "stage.forward" | "stage.backward":
                self._add("time/compute_s", "begin", now_s)
            case "worker.decided":
                self._add("sync/wait_s", "worker.reported", now_s)
            case "worker.encoded":
                self._add("time/encode_s", "worker.encoding", now_s)
                self._at_s["worker.pushed"] = now_s
            case "worker.synced":
                self._add("time/sync_s", "worker.pushed", now_s)
        self._at_s[point] = now_s

    def measured(self) -> dict[str, float]:
        """Return the sums since the last call, and begin anew."""
        sums, self._sums = self._sums, {}
        if self._is_stage:
            now_s = time.perf_counter()
            passed_s = max(1e-9, now_s - self._since_s)
            sums["pipeline/utilisation"] = min(1.0, self._busy_s / passed_s)
            sums["pipeline/bubble"] = min(1.0, self._starved_s / passed_s)
            self._busy_s = self._starved_s = 0.0
            self._since_s = now_s
        return sums

    def _add(self, name: str, since: str, now_s: float) -> None:
        if since in self._at_s:
            self._sums[name] = self._sums.get(name, 0.0) + now_s - self._at_s[since]

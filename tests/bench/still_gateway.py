"""The gateway process over jobs that train nothing and tell something at a steady pace: `actors.gateway` without a Ray.

The socket, the questions, their threads and the process itself are the real ones.

    python -m tests.bench.still_gateway EVENTS_PER_S SOCKET PARENT
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from typing import Any

from actors.gateway import serve
from raysync.engine.coordinator.knob_board import KnobBoard
from raysync.errors import NotRunning
from raysync.events import Event
from raysync.knobs import Knobs
from raysync.ports import CheckpointSeen, FileSeen, JobStatus, Launch, LogPage, Records, Sighting
from raysync.runtime import Runtime
from raysync.spec import JobSpec
from tests.service.still_runtime import status_of

_PAGE = 2000


class SteadyJob:
    """A job that has told, at any moment, as many events as its age and pace make; the first says that it runs."""

    def __init__(self, spec: str, events_per_s: float) -> None:
        self.board, self._pace, self._born_s = KnobBoard(JobSpec.model_validate_json(spec)), events_per_s, time.time()
        self._lock = threading.Lock()

    @property
    def num_events(self) -> int:
        """How many it has told."""
        return 1 + int((time.time() - self._born_s) * self._pace)

    def after(self, sequence: int) -> list[Event]:
        """Return what it has told since."""
        return [self._record(n) for n in range(sequence + 1, min(self.num_events, sequence + 1 + _PAGE))]

    def due_s(self, sequence: int) -> float:
        """Return how long until it tells the event of this number."""
        return self._born_s + sequence / self._pace - time.time()

    def turn(self, changes: dict[str, Any], expected: int | None, dry_run: bool, by: str) -> Knobs:
        """Turn knobs at once."""
        with self._lock:
            if dry_run:
                return self.board.preview(changes, expected)
            knobs = self.board.turn(changes, expected, by=by)
            self.board.apply()
            return knobs

    def take(self, knobs: Knobs) -> None:
        """Take over knobs that were turned before it was started."""
        with self._lock:
            if self.board.adopt(knobs):
                self.board.apply()

    def _record(self, number: int) -> Event:
        if number == 0:
            data: dict[str, Any] = {"state": "RUNNING", "reason": "it trains", "before": "STARTING"}
            return Event(sequence=0, kind="state", time_s=0.0, data=data)
        data = {"train/loss": 1.0 / number, "comm/bytes_up": 100.0 * number, "sync/rounds": float(number)}
        return Event(sequence=number, kind="metrics", time_s=number / self._pace, step=number, data=data)


class SteadyGateway(Runtime):
    """What `actors.gateway.Gateway` answers, without a cluster."""

    def __init__(self, events_per_s: float) -> None:
        self._events_per_s = events_per_s
        self._jobs: dict[str, SteadyJob] = {}

    def ping(self) -> str:
        """Return the cluster's name."""
        return "steady"

    def launch(self, order: Launch) -> str:
        """Start a job."""
        job = self._jobs.setdefault(order.job, SteadyJob(order.spec, self._events_per_s))
        if order.knobs is not None:
            job.take(order.knobs)
        return self.ping()

    def jobs(self) -> list[str]:
        """Return all jobs."""
        return list(self._jobs)

    def look(self, job: str, path: str) -> Sighting:
        """Return whether a job runs."""
        return Sighting(has_controller=job in self._jobs)

    def records(self, job: str, after: int, wait_s: float) -> Records:
        """Return what a job has told since, waiting for something as a controller does: in a thread."""
        found = self._found(job)
        if found.num_events <= after + 1 and wait_s:
            time.sleep(max(0.0, min(wait_s, found.due_s(after + 1))))
        return Records(found.after(after))

    def written_records(self, path: str, offset: int) -> Records:
        """Return nothing: jobs have no folders here."""
        return Records([], offset)

    def status(self, job: str) -> JobStatus:
        """Return what a controller knows."""
        knobs = self._found(job).board.knobs
        return status_of(job, "RUNNING", "it trains", knobs, knobs)

    def turn(self, job: str, changes: dict[str, Any], expected_version: int | None, dry_run: bool, by: str) -> Knobs:
        """Turn knobs."""
        return self._found(job).turn(changes, expected_version, dry_run, by)

    def stop(self, job: str, reason: str, force_after_s: float) -> None:
        """Forget a job."""
        self._jobs.pop(job, None)

    def forget(self, job: str) -> None:
        """Do nothing."""

    def checkpoint(self, job: str) -> None:
        """Do nothing."""

    def checkpoints(self, path: str) -> list[CheckpointSeen]:
        """Return none."""
        return []

    def log(self, path: str, offset: int | None, tail_lines: int) -> LogPage:
        """Return nothing."""
        return LogPage([], 0)

    def files(self, path: str) -> list[FileSeen]:
        """Return none."""
        return []

    def piece(self, path: str, name: str, offset: int, size: int) -> bytes:
        """Return nothing."""
        return b""

    def _found(self, job: str) -> SteadyJob:
        if job not in self._jobs:
            raise NotRunning(job, "gone", "it was stopped")
        return self._jobs[job]


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[2], int(sys.argv[3]), SteadyGateway(float(sys.argv[1]))))
    os._exit(0)

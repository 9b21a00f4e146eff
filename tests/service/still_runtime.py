"""A runtime that trains nothing: jobs stand where a test puts them. Knobs are the engine's own, the rest is a script.

The real runtime is tested in `tests/runtime`; this one lets thousands of requests through in seconds, and clusters
come and go at a test's word.
"""

from __future__ import annotations

import asyncio
from typing import Any

from raysync.control.states import JobState
from raysync.engine.coordinator.knob_board import KnobBoard
from raysync.errors import NotRunning, RuntimeLost
from raysync.events import Event
from raysync.knobs import Knobs, initial_knobs, overlaid
from raysync.ports import CheckpointSeen, FileSeen, JobStatus, Launch, LogPage, Records, Runs, Sighting
from raysync.questions import Question
from raysync.spec import JobSpec
from service.runtime.port import AsyncRuntime


class StillJob:
    """A job on the still cluster; its journal outlives the cluster."""

    def __init__(self, order: Launch) -> None:
        self.order = order
        self.board = KnobBoard(JobSpec.model_validate_json(order.spec))
        self.early = initial_knobs(JobSpec.model_validate_json(order.spec))
        self.records: list[Event] = []
        self.stopped: tuple[str, float] | None = None
        self.checkpoints = 0
        self.end: str | None = None
        self.files: dict[str, tuple[Any, bytes, int | None]] = {}
        """What it has made: kind, bytes, step."""


RUNS = Runs(
    link="still",
    link_reason="",
    push="identity",
    pull="identity",
    error_feedback=False,
    decides_ahead=False,
    shards_in="actors",
    devices=[],
    actors={},
)


def status_of(job: str, state: str, reason: str, knobs: Knobs, asked: Knobs) -> JobStatus:
    """Return what a controller tells of a job that has neither actors nor a folder."""
    return JobStatus(
        job=job,
        name=job,
        state=JobState(state),
        reason=reason,
        step=0,
        steps=0,
        knobs=knobs,
        asked=asked,
        metrics={},
        actors={},
        runs=RUNS,
        path="",
        checkpoint=None,
        checkpoints=[],
        incarnation=0,
    )


class StillRuntime(AsyncRuntime):
    """A runtime in memory."""

    cluster: str | None = None
    address = "here:6379"
    problem = "the test took it away"
    unreachable_s = 0.0

    def __init__(self, cluster: str | None = "first") -> None:
        self.cluster = cluster
        self.alive: dict[str, StillJob] = {}
        """Jobs with a controller."""
        self.folders: dict[str, StillJob] = {}
        """What is written in folders, by job."""
        self.launches: list[Launch] = []
        self.forgotten: list[str] = []

    # What a test says

    def tell(self, job: str, kind: str, data: dict[str, Any], step: int = 0, knob_version: int = 0) -> None:
        """Let a job tell something."""
        found = self.folders[job]
        record = Event(
            sequence=len(found.records), kind=kind, time_s=0.1, step=step, knob_version=knob_version, data=data
        )
        found.records.append(record)

    def enter(self, job: str, state: str, reason: str = "the test says so") -> None:
        """Let a job enter a state."""
        self.tell(job, "state", {"state": state, "reason": reason, "before": "?"})
        if state in ("SUCCEEDED", "FAILED", "STOPPED"):
            self.folders[job].end = state

    def lose_cluster(self, unreachable_s: float = 0.0) -> None:
        """Take the cluster away, and with it every controller."""
        self.cluster, self.unreachable_s = None, unreachable_s
        self.alive.clear()

    # The port

    async def start(self) -> None:
        """Begin."""

    async def close(self) -> None:
        """End."""

    async def launch(self, order: Launch) -> str:
        """Start a job."""
        cluster = self._there()
        if order.job not in self.alive:
            self.launches.append(order)
            job = self.folders.get(order.job) or StillJob(order)
            job.end = None
            self.folders[order.job] = self.alive[order.job] = job
        if order.knobs is not None:
            self._take(order.job, order.knobs)
        return cluster

    def _take(self, id: str, knobs: Knobs) -> None:
        """Take over knobs that were turned before the job was started, as a controller does."""
        job = self.alive[id]
        if job.board.adopt(overlaid(job.board.ahead(), job.early, knobs)):
            job.early = knobs
            self._apply(id)

    async def jobs(self) -> list[str]:
        """Return the jobs with a controller."""
        self._there()
        return sorted(self.alive)

    async def look(self, job: str, path: str) -> Sighting:
        """Return what is to be seen of a job."""
        self._there()
        written = self.folders.get(job)
        return Sighting(
            has_controller=job in self.alive,
            end=written.end if written else None,
            end_reason="written",
            has_checkpoint=bool(written and written.checkpoints),
        )

    async def records(self, job: str, after: int, wait_s: float) -> Records:
        """Return what a job has told since."""
        deadline = asyncio.get_running_loop().time() + min(wait_s, 0.2)
        while True:
            found = [record for record in self._alive(job).records if record.sequence > after]
            if found or asyncio.get_running_loop().time() > deadline:
                return Records(found[:100])
            await asyncio.sleep(0.005)

    async def written_records(self, path: str, offset: int) -> Records:
        """Return what is written in a job's folder; the offset counts records here."""
        self._there()
        job = self.folders.get(path.rpartition("/")[2])
        records = job.records[offset : offset + 10] if job else []
        return Records(records, offset + len(records))

    async def status(self, job: str) -> JobStatus:
        """Return what the controller knows."""
        found = self._alive(job)
        states = [record.data for record in found.records if record.kind == "state"]
        last = states[-1] if states else {"state": "PENDING", "reason": "it has just been submitted"}
        return status_of(job, last["state"], last["reason"], found.board.knobs, found.board.ahead())

    async def turn(
        self, job: str, changes: dict[str, Any], expected_version: int | None, dry_run: bool, by: str
    ) -> Knobs:
        """Turn knobs, as the engine does."""
        board = self._alive(job).board
        if dry_run:
            return board.preview(changes, expected_version)
        knobs = board.turn(changes, expected_version, by=by)
        self._apply(job)
        return knobs

    def _apply(self, job: str) -> None:
        for turned in self.alive[job].board.apply():
            self.tell(job, "knobs", turned.told.data, step=7, knob_version=turned.version)

    async def checkpoint(self, job: str) -> None:
        """Take a checkpoint."""
        self._alive(job).checkpoints += 1

    async def stop(self, job: str, reason: str, force_after_s: float) -> None:
        """End a job, as soon as the test lets it."""
        self._alive(job).stopped = (reason, force_after_s)

    async def forget(self, job: str) -> None:
        """Clear a job away."""
        self._there()
        self.alive.pop(job, None)
        self.forgotten.append(job)

    async def checkpoints(self, path: str) -> list[CheckpointSeen]:
        """Return a job's checkpoints."""
        self._there()
        job = self.folders.get(path.rpartition("/")[2])
        return [
            CheckpointSeen(f"checkpoint_{n:06d}", f"{path}/checkpoint_{n:06d}", 10 * n, n, 2, 1.5, 1000)
            for n in range(job.checkpoints if job else 0)
        ]

    async def log(self, path: str, offset: int | None, tail_lines: int) -> LogPage:
        """Return log lines."""
        self._there()
        lines = ["2026-01-01T00:00:00 worker/0 | one", "2026-01-01T00:00:00 worker/1 | two"]
        return LogPage(lines if not offset else [], 2)

    async def files(self, path: str) -> list[FileSeen]:
        """Return a job's files."""
        self._there()
        job = self.folders.get(path.rpartition("/")[2])
        return [
            FileSeen(name, kind, len(data), step) for name, (kind, data, step) in (job.files if job else {}).items()
        ]

    async def piece(self, path: str, name: str, offset: int, size: int) -> bytes:
        """Return a piece of a file."""
        self._there()
        return self.folders[path.rpartition("/")[2]].files[name][1][offset : offset + size]

    async def _ask(self, question: Question, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{question.method} is not answered here")

    def _there(self) -> str:
        if self.cluster is None:
            raise RuntimeLost(self.problem)
        return self.cluster

    def _alive(self, job: str) -> StillJob:
        self._there()
        if job not in self.alive:
            raise NotRunning(job, "gone", "the test took it away")
        return self.alive[job]

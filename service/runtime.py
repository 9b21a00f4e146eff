"""The port to whatever carries the jobs: what the service asks of it. `service.gateway` is the real one."""

from __future__ import annotations

from typing import Any, Protocol

from raysync.knobs import Knobs
from raysync.ports import CheckpointSeen, Launch, LogPage, Records, Sighting


class Runtime(Protocol):
    """Every call is bounded, and raises `RuntimeLost` while no cluster answers."""

    @property
    def cluster(self) -> str | None:
        """The name of the cluster that answers now."""

    @property
    def problem(self) -> str:
        """Why none does."""

    @property
    def unreachable_s(self) -> float:
        """For how long none has."""

    async def start(self) -> None:
        """Begin to look for a cluster."""

    async def close(self) -> None:
        """Let go of it; jobs run on."""

    async def launch(self, order: Launch) -> str:
        """Start a job unless it runs; return the cluster it is on."""

    async def jobs(self) -> list[str]:
        """Return the jobs that have a controller on the cluster, whoever started them."""

    async def look(self, job: str, path: str) -> Sighting:
        """Return what is to be seen of a job."""

    async def records(self, job: str, after: int, wait_s: float) -> Records:
        """Return what a job has told since, waiting for something."""

    async def written_records(self, path: str, offset: int) -> Records:
        """Return what is written in a job's folder."""

    async def status(self, job: str) -> dict[str, Any]:
        """Return what the job's controller knows."""

    async def turn(self, job: str, changes: dict[str, Any], expected_version: int | None, dry_run: bool) -> Knobs:
        """Turn knobs at the next decision."""

    async def checkpoint(self, job: str) -> None:
        """Ask for a checkpoint."""

    async def stop(self, job: str, reason: str, force_after_s: float) -> None:
        """End a job."""

    async def forget(self, job: str) -> None:
        """Clear away what is left of a job on the cluster."""

    async def checkpoints(self, path: str) -> list[CheckpointSeen]:
        """Return the checkpoints in a job's folder."""

    async def log(self, path: str, offset: int | None, tail_lines: int) -> LogPage:
        """Return a page of a job's log."""

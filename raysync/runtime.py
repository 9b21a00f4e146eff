"""What can be asked of the runtime that carries jobs, declared once.

`actors.gateway.Gateway` answers these questions; a control plane in another process asks them, through
`service.runtime.port.AsyncRuntime`, which takes its methods from here. To add a question, declare it below, answer it
in the gateway, and name it in the port; what it answers with is a value of `raysync.ports`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from raysync.knobs import Knobs
from raysync.ports import CheckpointSeen, FileSeen, JobStatus, Launch, LogPage, Records, Sighting


class Runtime(ABC):
    """Every answer is bounded in time, and is one of `raysync.errors` where it is no value."""

    @abstractmethod
    def ping(self) -> str:
        """Return the cluster's name, having heard from it."""

    @abstractmethod
    def launch(self, order: Launch) -> str:
        """Start a job's controller unless it is there, and hand over knobs; return the cluster it is on."""

    @abstractmethod
    def jobs(self) -> list[str]:
        """Return the jobs that have a controller on the cluster, whichever control plane started them."""

    @abstractmethod
    def look(self, job: str, path: str) -> Sighting:
        """Return what is to be seen of a job and in its folder."""

    @abstractmethod
    def records(self, job: str, after: int, wait_s: float) -> Records:
        """Return events of a job numbered above `after`, waiting for one."""

    @abstractmethod
    def written_records(self, path: str, offset: int) -> Records:
        """Return events from the journal in a job's folder."""

    @abstractmethod
    def status(self, job: str) -> JobStatus:
        """Return what the job's controller knows."""

    @abstractmethod
    def turn(self, job: str, changes: dict[str, Any], expected_version: int | None, dry_run: bool, by: str) -> Knobs:
        """Turn knobs at the next decision, and return them as they will be; the event log says by whom."""

    @abstractmethod
    def checkpoint(self, job: str) -> None:
        """Ask a job for a checkpoint at its next quiet moment."""

    @abstractmethod
    def stop(self, job: str, reason: str, force_after_s: float) -> None:
        """End a job with its next step, by force after the bound."""

    @abstractmethod
    def forget(self, job: str) -> None:
        """Clear away what is left of a job on the cluster; its folder stays."""

    @abstractmethod
    def checkpoints(self, path: str) -> list[CheckpointSeen]:
        """Return the complete checkpoints in a job's folder, oldest first."""

    @abstractmethod
    def log(self, path: str, offset: int | None, tail_lines: int) -> LogPage:
        """Return a page of the log in a job's folder: from an offset on, or the last lines."""

    @abstractmethod
    def files(self, path: str) -> list[FileSeen]:
        """Return what a job's folder has to take along: the final model, complete checkpoints, traces."""

    @abstractmethod
    def piece(self, path: str, name: str, offset: int, size: int) -> bytes:
        """Return a piece of one of these files; less than `size` only at its end."""

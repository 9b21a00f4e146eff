"""Who starts and ends the jobs of a study: the process that runs it, or a service on its behalf."""

from __future__ import annotations

import contextlib
from typing import Any, Protocol

from ray.exceptions import RayError

from actors.api.job import find, submit
from raysync.errors import RaysyncError
from raysync.spec import JobSpec

_STOP_S = 5.0
_END_S = 30.0


class Launcher(Protocol):
    """The port to whoever carries the jobs."""

    def launch(self, id: str, spec: JobSpec) -> None:
        """Start a job under an id; it may wait for room before it is found on the cluster."""

    def stop(self, id: str, reason: str) -> None:
        """End a job, if it still runs, and clear it away."""

    def gone(self, id: str) -> str | None:
        """Return why a job that is not on the cluster never will be; None if it may still come."""

    def finished(self, id: str) -> None:
        """All that a job told has been read."""


class DirectLauncher:
    """Starts jobs on the Ray this process is connected to."""

    def __init__(self, storage: str, runtime_env: dict[str, Any] | None = None) -> None:
        self._storage, self._env = storage, runtime_env

    def launch(self, id: str, spec: JobSpec) -> None:
        """Start a job at once; the cluster makes it wait where there is no room."""
        submit(spec, storage_path=self._storage, job=id, runtime_env=self._env)

    def stop(self, id: str, reason: str) -> None:
        """End a job and its controller."""
        with contextlib.suppress(ValueError, RaysyncError, RayError):
            job = find(id)
            job.stop(reason, checkpoint=False, force_after_s=_STOP_S)
            job.wait(_END_S)
            job.forget()

    def gone(self, id: str) -> str | None:
        """Jobs that were started are there."""
        return None

    def finished(self, id: str) -> None:
        """End the controller."""
        with contextlib.suppress(ValueError, RayError):
            find(id).forget()

"""A job as its owner holds it: a handle on its controller."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from actors.api.result import Result
from actors.errors import JobFailed, NotConnected
from actors.job.actor_group import CONTROLLER, NAMESPACE
from actors.job.controller import ControllerActor
from actors.job.order import JobOrder
from actors.job.packages import check_environment, prepare
from actors.shell.versions import this_code
from actors.storage.folder import Folder, read_manifest
from raysync.control.resuming import obstacle, taken_of
from raysync.control.states import JobState
from raysync.errors import CheckpointError, NotRunning
from raysync.events import Event
from raysync.knobs import Knobs
from raysync.ports import JobStatus
from raysync.spec import JobSpec

_ANSWER_S = 90.0
_STEERABLE = (JobState.RUNNING, JobState.PAUSED, JobState.RESIZING)


class Job:
    """A running job; every call is bounded, and raises what the controller raises."""

    def __init__(self, job: str, controller: Any, path: str | None = None) -> None:
        self.id, self._controller, self._path = job, controller, path

    @property
    def path(self) -> str:
        """The job's folder."""
        self._path = self._path or self.status().path
        return self._path

    def status(self) -> JobStatus:
        """Return state, reason, step, knobs, latest metrics, actors, and what really runs."""
        return self._ask("status")  # type: ignore[no-any-return]

    def records(self, after: int = -1, limit: int = 1000, wait_s: float = 0.0) -> list[Event]:
        """Return events numbered above `after`; with `wait_s`, wait for one."""
        return self._ask("records", after, limit, wait_s)  # type: ignore[no-any-return]

    def follow(self) -> Iterator[Event]:
        """Yield every event, from the first to the job's last."""
        after, ended = -1, False
        while True:
            batch = self.records(after, wait_s=1.0)
            yield from batch
            after = batch[-1].sequence if batch else after
            if ended and not batch:
                return
            ended = self._ask("wait", 0.0)

    def turn(
        self, expected_version: int | None = None, *, dry_run: bool = False, by: str = "", **changes: Any
    ) -> Knobs:
        """Turn knobs; they take effect at one step for all workers. The event log says by whom, if that is given."""
        return self._ask("turn", changes, expected_version, dry_run, by)  # type: ignore[no-any-return]

    def take(self, knobs: Knobs) -> None:
        """Take over knobs that were turned before the job was started."""
        self._ask("take", knobs)

    def resize(self, workers: int) -> Knobs:
        """Ask for another number of workers; those that stay are not restarted."""
        return self.turn(workers=workers)

    def pause(self) -> Knobs:
        """Hold all workers at the next decision."""
        return self.turn(pause=True)

    def resume(self) -> Knobs:
        """Go on after a pause."""
        return self.turn(pause=False)

    def checkpoint(self) -> None:
        """Ask for a checkpoint at the next quiet moment."""
        self._ask("checkpoint")

    def stop(self, reason: str = "its owner stopped it", checkpoint: bool = True, force_after_s: float = 60.0) -> None:
        """End the job in good order, leaving a checkpoint; by force after the bound."""
        self._ask("stop", reason, checkpoint, force_after_s)

    def wait_running(self, timeout_s: float = 300.0) -> bool:
        """Wait until the job trains and can be steered; return whether it does, or has ended instead.

        Raises `NotRunning` with the reason it still waits for after the bound.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            status = self.status()
            if status.state in _STEERABLE or status.state.is_terminal:
                return not status.state.is_terminal
            if time.monotonic() > deadline_s:
                raise NotRunning(self.id, status.state.value, status.reason)
            time.sleep(0.2)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the job's end; return whether it has come."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = 5.0 if deadline_s is None else min(5.0, max(0.0, deadline_s - time.monotonic()))
            if self._ask("wait", left_s):
                return True
            if deadline_s is not None and time.monotonic() >= deadline_s:
                return False

    def result(self) -> Result:
        """Return what the job came to; call it after its end."""
        status = self.status()
        return Result(
            job=self.id,
            state=status.state.value,
            reason=status.reason,
            metrics=status.metrics,
            path=status.path,
            error=JobFailed(self.id, status.reason) if status.state is JobState.FAILED else None,
            runs=status.runs,
            checkpoint_path=status.checkpoint,
        )

    def forget(self) -> None:
        """End the controller of a job that has ended; its folder stays."""
        ray.kill(self._controller, no_restart=True)

    def _ask(self, method: str, *arguments: Any) -> Any:
        """Ask the controller; while Ray restarts it, ask again."""
        deadline_s = time.monotonic() + _ANSWER_S
        while True:
            try:
                return ray.get(getattr(self._controller, method).remote(*arguments), timeout=_ANSWER_S)
            except RayTaskError as error:
                raise error.cause if isinstance(error.cause, Exception) else error from None
            except RayActorError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.2)


def submit(
    spec: JobSpec,
    *,
    storage_path: str,
    job: str | None = None,
    runtime_env: dict[str, Any] | None = None,
    ship_code: bool = False,
    resume_from: str | None = None,
    knobs: Knobs | None = None,
    is_warm: bool = False,
) -> Job:
    """Start a job on the Ray this process is connected to, with knobs as they were turned meanwhile; return at once.

    `is_warm` says that processes wait for it (`actors.job.warm_pool`).
    """
    _check_connected()
    check_order(spec, storage_path, runtime_env, resume_from)
    job = job or f"{spec.name}-{secrets.token_hex(4)}"
    folder = Folder(f"{storage_path.rstrip('/')}/{job}")
    resume_from = Folder(resume_from).uri if resume_from is not None else None
    envs, key, text = prepare(runtime_env, ship_code, is_warm), secrets.token_bytes(32), spec.model_dump_json()
    order = JobOrder(job, text, key, this_code(), folder.uri, envs, resume_from, knobs)
    folder.write("job.json", text.encode())
    kind: Any = ControllerActor
    controller = kind.options(
        name=f"{job}:{CONTROLLER}",
        namespace=NAMESPACE,
        lifetime="detached",
        runtime_env=envs.own,
        scheduling_strategy="DEFAULT",  # in nobody's placement group: it would end with whoever submits
    ).remote(order)
    return Job(job, controller, folder.uri)


def find(job: str) -> Job:
    """Return a job that runs on this Ray, by its id; raise `ValueError` if there is none."""
    _check_connected()
    return Job(job, ray.get_actor(f"{job}:{CONTROLLER}", namespace=NAMESPACE))


def check_order(
    spec: JobSpec, storage_path: str, runtime_env: dict[str, Any] | None = None, resume_from: str | None = None
) -> None:
    """Raise whatever can be told without a Ray to be wrong with a job that is about to be submitted."""
    check_environment(dict(runtime_env or {}))
    if resume_from is not None:
        check_resumable(spec, resume_from)
    Folder(storage_path).make()


def _check_connected() -> None:
    """Ray would connect by itself to the last cluster it remembers, and wait for one that is gone."""
    if not ray.is_initialized():
        raise NotConnected


def check_resumable(spec: JobSpec, path: str) -> JobSpec:
    """Return the job a checkpoint was taken of; raise if `spec` could not continue it."""
    taken = taken_of(read_manifest(Folder(path)))
    why_not = obstacle(spec, taken)
    if why_not is not None:
        raise CheckpointError(path, why_not)
    return taken.submitted

"""The controller actor: one per job, detached and named. It answers whoever asks; its loop looks after the job.

Ray restarts it if it dies; it then finds the job's actors by their names and goes on with what it remembers. What a
job has told so far is in its journal.
"""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from typing import Any

import msgspec
import ray

from actors.job.actor_group import CONTROLLER, ActorGroup
from actors.job.control_loop import ControlLoop
from actors.job.order import JobOrder, first_memory
from actors.job.steering import Steering
from actors.shell.core_actor import Assignment
from actors.storage.folder import Folder, completed
from actors.storage.journal import Journal
from actors.storage.keeper import Keeper
from actors.storage.log_shipper import LogShipper
from actors.storage.retry import LONG_S, patiently
from raysync.control.controller_memory import Memory, StopWanted
from raysync.control.states import JobState
from raysync.engine import messages as m
from raysync.errors import RaysyncError
from raysync.events import Event
from raysync.knobs import Knobs
from raysync.ports import JobStatus, Runs
from raysync.spec import JobSpec

_FORCE_AFTER_S = 60.0
_LINGER_S = 600.0
"""How long a controller whose job has ended waits to be asked about it."""
_COALESCE_S = 0.2


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=0, concurrency_groups={"ask": 32, "lines": 1})
class ControllerActor:
    """Owns a job from PENDING to its end."""

    def __init__(self, order: JobOrder) -> None:
        self._order = order
        self._spec = JobSpec.model_validate_json(order.spec)
        self._folder = Folder(order.folder)
        self._keeper = Keeper(self._folder, lambda: first_memory(order, self._spec))
        here, memory = ray.get_runtime_context().get_node_id(), self._memory
        # Written by this very machine since its last start, the journal has its end.
        is_whole = self._folder.is_local and memory.node in ("", here)
        memory.node = here
        first = 0 if is_whole else memory.reserved
        claim = self._keeper.claim
        self._journal = patiently(lambda: Journal(self._folder, first, claim), "opening the journal", LONG_S)
        self._journal.begin(memory.incarnation, takes_over=memory.is_succeeded)
        self._lines = LogShipper(CONTROLLER, self._journal.lines)
        self._lines.install()
        base = Assignment(order.job, (), order.spec, order.key, order.driver, order.folder, is_followed=True)
        me = ray.get_runtime_context().current_actor
        group = ActorGroup(order.job, self._spec, base, order.envs, me)
        group.life, group.next_worker = memory.incarnation, memory.next_worker
        self._steering = Steering(self._spec, self._keeper, group, self._journal)
        if order.knobs is not None:
            self._steering.take(order.knobs)
        parts = (self._keeper, self._journal, group, self._steering)
        self._loop = ControlLoop(self._spec, self._folder, *parts, last_words=self._lines.flush)
        self._listed: list[str] = []
        self._ended = threading.Event()
        if memory.state.is_terminal:
            self._ended.set()
        threading.Thread(target=self._live, name="controller", daemon=True).start()

    @property
    def _memory(self) -> Memory:
        return self._keeper.memory

    # Asked from outside

    @ray.method(concurrency_group="ask")
    def status(self) -> JobStatus:
        """Return where the job is and what really runs."""
        memory = self._memory
        with contextlib.suppress(OSError):  # what was found last stands for what cannot be looked at now
            self._listed = completed(self._folder)
        return JobStatus(
            job=self._order.job,
            name=self._spec.name,
            state=memory.state,
            reason=memory.reason,
            step=self._journal.step,
            steps=self._spec.budget.steps,
            knobs=memory.knobs,
            asked=memory.asked,
            metrics=dict(self._journal.latest),
            actors=self._loop.observed.of_actors(),
            runs=msgspec.convert(self._loop.observed.of_job(), Runs),
            path=self._order.folder,
            checkpoint=memory.checkpoint,
            checkpoints=self._listed,
            incarnation=memory.incarnation,
        )

    @ray.method(concurrency_group="ask")
    def records(self, after: int, limit: int = 1000, wait_s: float = 0.0) -> list[Event]:
        """Return the events with numbers above `after`, waiting for one if there is none."""
        if wait_s > 0 and not self._ended.is_set():
            with self._journal.grown:
                self._journal.grown.wait_for(
                    lambda: self._journal.next_sequence > after + 1 or self._ended.is_set(), wait_s
                )
            self._ended.wait(min(wait_s, _COALESCE_S))
        return self._journal.after(after, limit)

    @ray.method(concurrency_group="ask")
    def turn(
        self, changes: dict[str, Any], expected_version: int | None = None, dry_run: bool = False, by: str = ""
    ) -> Knobs:
        """Turn knobs at the next step decided on, the first if none is yet; return them as they will be."""
        return self._steering.turn(changes, expected_version, dry_run, by)

    @ray.method(concurrency_group="ask")
    def take(self, knobs: Knobs) -> None:
        """Take over knobs that were turned before the job had a controller."""
        self._steering.take(knobs)

    @ray.method(concurrency_group="ask")
    def checkpoint(self) -> None:
        """Ask for a checkpoint at the next quiet moment."""
        self._steering.ask("tell", m.TakeCheckpoint())

    @ray.method(concurrency_group="ask")
    def stop(self, reason: str, checkpoint: bool = True, force_after_s: float = _FORCE_AFTER_S) -> None:
        """End the job with its next step, by force if that takes longer than the bound."""
        self._steering.stop(StopWanted(reason, checkpoint, time.time() + force_after_s))

    @ray.method(concurrency_group="ask")
    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of the job; return whether it has come."""
        return self._ended.wait(timeout_s)

    @ray.method(concurrency_group="lines")
    def lines(self, lines: list[str]) -> None:
        """Take in log lines of the job's actors."""
        self._journal.lines(lines)

    # The controller's thread

    def _live(self) -> None:
        """Run the loop to the job's end; then stay for a while, for whoever asks what became of it."""
        try:
            self._loop.live()
        except RaysyncError as error:
            self._loop.end(JobState.FAILED, str(error))
        except Exception:
            self._loop.end(JobState.FAILED, f"the controller failed:\n{traceback.format_exc()}")
        finally:
            self._ended.set()
            with self._journal.grown:
                self._journal.grown.notify_all()
        ended_s = time.monotonic()
        while time.monotonic() - ended_s < _LINGER_S:
            self._keeper.catch_up()
            time.sleep(1.0)
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)

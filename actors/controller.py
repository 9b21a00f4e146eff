"""The controller actor: one per job, detached and named. Its loop is poll, `reconcile`, act, note the reason.

Ray restarts it if it dies; it then finds the job's actors by their names and goes on. All decisions are
`raysync.control`'s; what a job has told so far is in its journal.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
import traceback
from typing import Any

import msgspec
import ray
from ray.exceptions import RayError, RayTaskError

from actors.coordinator import Progress
from actors.core_actor import Assignment
from actors.crew import CONTROLLER, Crew
from actors.facts import Facts
from actors.journal import Journal
from actors.lines import LineShipper
from actors.packages import Environments
from actors.storage import Folder, checkpoint_name, completed, read_manifest
from actors.versions import Code
from raysync.control.reconcile import Act, Action, ActorSeen, Life, Seen, StopAsked, reconcile
from raysync.control.states import JobState
from raysync.engine import messages as m
from raysync.errors import NotRunning
from raysync.knobs import Knobs, initial_knobs
from raysync.ports import Record
from raysync.spec import JobSpec

_POLL_S = 0.5
_PENDING_POLL_S = 1.0
_FORCE_AFTER_S = 60.0
_LINGER_S = 600.0
"""How long a controller whose job has ended waits to be asked about it."""
_FLUSH_S = 2.0
_ASK_S = 60.0
_COALESCE_S = 0.2
_TELL_REASON_S = 1.0
"""While a job waits its reason may change with every look; so often it is worth an event."""

logger = logging.getLogger(__name__)


class JobOrder(msgspec.Struct, frozen=True):
    """What a controller is told when it is made, and made again."""

    job: str
    spec: str
    """The job as JSON."""
    key: bytes
    driver: Code
    folder: str
    servers_env: dict[str, Any] = {}
    workers_env: dict[str, Any] = {}
    resume: str | None = None
    """The checkpoint to start from."""


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=0, concurrency_groups={"ask": 32, "lines": 1})
class ControllerActor:
    """Owns a job from PENDING to its end."""

    def __init__(self, order: JobOrder) -> None:
        self._order = order
        self._spec = JobSpec.model_validate_json(order.spec)
        self._folder = Folder(order.folder)
        self._journal = Journal(order.job, self._folder)
        self._lines = LineShipper(CONTROLLER, self._journal.lines)
        self._lines.install()
        base = Assignment(order.job, (), order.spec, order.key, order.driver, order.folder)
        self._crew = Crew(
            order.job,
            self._spec,
            base,
            Environments(order.servers_env, order.workers_env),
            ray.get_runtime_context().current_actor,
        )
        self._facts = Facts(self._spec, self._crew)
        self._started_s = time.time()
        self._state, self._reason = JobState.PENDING, "it has just been submitted"
        self._stop: tuple[str, float] | None = None
        self._leaving: set[int] = set()
        self._knobs: Knobs = initial_knobs(self._spec)
        self._view, self._members, self._finished = 0, frozenset[int](), False
        self._deaths = self._recoveries = 0
        self._shortage: str | None = None
        self._progress_call: Any = None
        self._checkpoint: str | None = order.resume
        self._resume = order.resume
        """What the next launch continues from."""
        self._flushed_s = self._looked_s = self._told_s = 0.0
        self._saved_version = 0
        self._save_lock = threading.Lock()
        self._stop_told, self._stops_with_checkpoint = False, True
        self._ended = threading.Event()
        if self._folder.size("status.json") is not None:
            self._remember()
        threading.Thread(target=self._loop, name="controller", daemon=True).start()

    # Asked from outside

    @ray.method(concurrency_group="ask")
    def status(self) -> dict[str, Any]:
        """Return where the job is and what really runs."""
        return {
            "job": self._order.job,
            "name": self._spec.name,
            "state": self._state.value,
            "reason": self._reason,
            "step": self._journal.step,
            "steps": self._spec.budget.steps,
            "knobs": msgspec.to_builtins(self._knobs),
            "metrics": dict(self._journal.latest),
            "actors": self._facts.of_actors(),
            "runs": self._facts.of_job(),
            "path": self._order.folder,
            "checkpoint": self._checkpoint,
            "checkpoints": completed(self._folder),
        }

    @ray.method(concurrency_group="ask")
    def records(self, after: int, limit: int = 1000, wait_s: float = 0.0) -> list[Record]:
        """Return the events with numbers above `after`, waiting for one if there is none."""
        if wait_s > 0 and not self._ended.is_set():
            with self._journal.grown:
                self._journal.grown.wait_for(
                    lambda: self._journal.next_sequence > after + 1 or self._ended.is_set(), wait_s
                )
            self._ended.wait(min(wait_s, _COALESCE_S))
        return self._journal.after(after, limit)

    @ray.method(concurrency_group="ask")
    def turn(self, changes: dict[str, Any], expected_version: int | None = None, dry_run: bool = False) -> Knobs:
        """Turn knobs at the next step decided on; return them as they will be, or would be."""
        return self._ask_coordinator("turn", changes, expected_version, dry_run)  # type: ignore[no-any-return]

    @ray.method(concurrency_group="ask")
    def checkpoint(self) -> None:
        """Ask for a checkpoint at the next quiet moment."""
        self._ask_coordinator("tell", m.TakeSnapshot())

    @ray.method(concurrency_group="ask")
    def stop(self, reason: str, checkpoint: bool = True, force_after_s: float = _FORCE_AFTER_S) -> None:
        """End the job with its next step, by force if that takes longer than the bound."""
        deadline_s = time.monotonic() + force_after_s
        if self._stop is None:
            self._stop, self._stops_with_checkpoint = (reason, deadline_s), checkpoint
            self._save()
        else:
            self._stop = (self._stop[0], min(self._stop[1], deadline_s))

    @ray.method(concurrency_group="ask")
    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of the job; return whether it has come."""
        return self._ended.wait(timeout_s)

    @ray.method(concurrency_group="lines")
    def lines(self, lines: list[str]) -> None:
        """Take in log lines of the job's actors."""
        self._journal.lines(lines)

    def _ask_coordinator(self, method: str, *arguments: Any) -> Any:
        member = self._crew.members.get(m.COORDINATOR)
        if member is None or not member.introduced:
            raise NotRunning(self._order.job, self._state.value, self._reason)
        try:
            return ray.get(getattr(member.actor, method).remote(*arguments), timeout=_ASK_S)
        except RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else error from None

    # The loop

    def _loop(self) -> None:
        try:
            self._adopt()
            while not self._state.is_terminal:
                self._poll()
                self._step()
        except Exception:
            self._end(JobState.FAILED, f"the controller failed:\n{traceback.format_exc()}")
        time.sleep(_LINGER_S)
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)

    def _adopt(self) -> None:
        """Take over what a controller before this one has left: all of it, or, if it never got to starting, nothing."""
        self._crew.adopt()
        if self._state is JobState.PENDING or (self._state is JobState.STARTING and self._view == 0):
            self._crew.dismiss_all()
            self._state = JobState.PENDING
            return
        if not self._state.is_terminal:
            self._crew.mourn(self._members)

    def _poll(self) -> None:
        """See what has changed since the last look."""
        if self._state is JobState.PENDING:
            self._shortage = self._crew.shortage(len(self._first_workers()))
            if self._shortage is not None:
                time.sleep(_PENDING_POLL_S)
            return
        if self._shortage is not None and time.monotonic() - self._looked_s > _PENDING_POLL_S:
            self._looked_s = time.monotonic()
            self._shortage = self._crew.shortage(1)
        for member in self._crew.introduce():
            if member.hello is not None:
                where = {"node": member.hello.node, "node_id": member.hello.node_id, "pid": member.hello.pid}
                self._journal.note("actor", {"name": member.name, "link": self._crew.link, **where}, self._now_s)
        coordinator = self._crew.members.get(m.COORDINATOR)
        if self._progress_call is None and coordinator is not None and coordinator.introduced:
            self._progress_call = coordinator.actor.progress.remote(self._journal.last_source, _POLL_S)
        extra = [self._progress_call] if self._progress_call is not None else []
        for call in self._crew.poll(_POLL_S, extra):
            self._progress_call = None
            with contextlib.suppress(RayError):  # its own answer tells of its death
                self._advance(ray.get(call))
        if time.monotonic() - self._flushed_s > _FLUSH_S:
            self._flushed_s = time.monotonic()
            try:
                self._journal.flush()
            except OSError as error:
                logger.warning("the journal could not be written now: %s", error)
            self._facts.look()

    def _tell_stop(self) -> None:
        """Tell the coordinator, once it can be told, that somebody wants the job to end."""
        coordinator = self._crew.members.get(m.COORDINATOR)
        if self._stop is None or self._stop_told or coordinator is None or not coordinator.introduced:
            return
        if self._stops_with_checkpoint and self._view > 0:
            self._ask_coordinator("tell", m.TakeSnapshot())
        self._ask_coordinator("tell", m.Stop(reason=self._stop[0]))
        self._stop_told = True

    def _advance(self, progress: Progress) -> None:
        if any(event.kind == "metrics" for event in progress.events):
            self._deaths = self._recoveries = 0
        for event in progress.events:
            self._journal.add(event)
        self._finished, self._view, self._knobs = progress.finished, progress.view, progress.knobs
        members, self._members = self._members, frozenset(progress.members)
        if progress.checkpoint is not None:
            self._checkpoint = f"{self._order.folder}/{checkpoint_name(progress.checkpoint)}"
        if members != self._members or progress.knobs.version != self._saved_version:
            self._save()

    def _step(self) -> None:
        """Make one decision and carry it out."""
        seen = self._seen()
        plan = reconcile(seen)
        if plan.state.is_terminal:
            self._end(plan.state, plan.reason)
            return
        if any(action.act in (Act.LAUNCH, Act.RECOVER) for action in plan.actions):
            self._enter(plan.state, plan.reason)  # first, so that a controller after this one knows what was begun
        try:
            self._tell_stop()
            for action in plan.actions:
                self._act(action)
        except (RayError, NotRunning, TimeoutError) as error:  # the next look tells what became of it
            logger.warning("%s", error)
            return
        if self._shortage is not None and not self._crew.members:
            self._enter(JobState.PENDING, self._shortage)
        elif (plan.state, plan.reason) != (self._state, self._reason):
            self._enter(plan.state, plan.reason)

    def _seen(self) -> Seen:
        servers: dict[str, ActorSeen] = {}
        workers: dict[int, ActorSeen] = {}
        for member in self._crew.members.values():
            for address in member.addresses:
                if address.startswith("worker/"):
                    workers[int(address.removeprefix("worker/"))] = member.seen
                elif member.seen.life is not Life.GONE:
                    servers[address] = member.seen
        return Seen(
            state=self._state,
            servers=servers,
            workers=workers,
            members=self._members,
            leaving=frozenset(self._leaving),
            wanted_workers=int(self._knobs.values["workers"] or 0),
            shortage=self._shortage,
            has_begun=self._view > 0,
            has_finished=self._finished,
            is_paused=bool(self._knobs.values["pause"]),
            stop=None if self._stop is None else StopAsked(self._stop[0], time.monotonic() > self._stop[1]),
            has_checkpoint=self._checkpoint is not None,
            deaths_in_a_row=self._deaths,
            recoveries_in_a_row=self._recoveries,
        )

    def _act(self, action: Action) -> None:
        logger.info("%s", action.act.value if action.worker is None else f"{action.act.value} worker {action.worker}")
        name = "" if action.worker is None else m.worker_address(action.worker)
        match action.act:
            case Act.LAUNCH:
                self._launch()
            case Act.ADD:
                self._shortage = self._crew.add_worker()
            case Act.RETIRE if action.worker is not None:
                self._ask_coordinator("tell", m.Leave(worker=action.worker))
                self._leaving.add(action.worker)
            case Act.BURY if action.worker is not None:
                if self._crew.members[m.COORDINATOR].introduced:
                    self._ask_coordinator("tell", m.Died(worker=action.worker))
                why = self._crew.members[name].seen.detail
                self._journal.note("death", {"worker": action.worker, "why": why}, self._now_s)
                self._deaths += 1
                self._crew.dismiss(name)
            case Act.DISMISS if action.worker is not None:
                self._leaving.discard(action.worker)
                self._crew.dismiss(name)
            case Act.RECOVER:
                self._recoveries += 1
                self._crew.dismiss_all()
                self._view, self._members, self._progress_call = 0, frozenset(), None
                self._leaving.clear()
                self._stop_told = False
                self._journal.rewind()
                self._checkpoint = self._resume = self._newest_checkpoint()
                self._launch()

    def _launch(self) -> None:
        resume, workers = self._resume, self._first_workers()
        manifest = read_manifest(Folder(resume)) if resume is not None else None
        self._crew.life += 1
        places = self._crew.reserve(workers)
        self._shortage = places if isinstance(places, str) else None
        if isinstance(places, str):
            return
        self._crew.launch(places, workers, resume, manifest["elapsed_s"] if manifest else 0.0)

    def _first_workers(self) -> list[int]:
        """Return the workers of the next launch: those of the checkpoint it continues, or the job's first."""
        if self._resume is None:
            return list(range(self._spec.scale.workers))
        workers: list[int] = read_manifest(Folder(self._resume))["workers"]
        return workers

    def _newest_checkpoint(self) -> str | None:
        done = completed(self._folder)
        return f"{self._folder.uri}/{done[-1]}" if done else self._checkpoint

    # Telling

    @property
    def _now_s(self) -> float:
        return time.time() - self._started_s

    def _enter(self, state: JobState, reason: str) -> None:
        if state is self._state and reason != self._reason and time.monotonic() - self._told_s > _TELL_REASON_S:
            self._told_s = time.monotonic()
            self._journal.note("reason", {"state": state.value, "reason": reason}, self._now_s)
        if state is not self._state:
            logger.info("%s: %s", state.value, reason)
            self._journal.note(
                "state",
                {"state": state.value, "reason": reason, "before": self._state.value, "at_s": time.time()},
                self._now_s,
            )
        self._state, self._reason = state, reason
        self._save()

    def _save(self) -> None:
        """Write down what a controller after this one must know, and what is left to read when all are gone."""
        with self._save_lock:
            self._saved_version = self._knobs.version
            self._folder.write("status.json", json.dumps(self._kept(), default=str).encode())

    def _end(self, state: JobState, reason: str) -> None:
        """Clear up first, then say so: whoever reads the last state finds nothing left behind."""
        with contextlib.suppress(Exception):
            self._facts.look()
        with contextlib.suppress(Exception):
            self._crew.dismiss_all()
        try:
            self._enter(state, reason)
            self._lines.flush()
            self._journal.close()
        except OSError:  # a full disk must not keep the job's owner waiting
            logger.exception("the end could not be written down")
            self._state, self._reason = state, reason
        finally:
            self._ended.set()
            with self._journal.grown:
                self._journal.grown.notify_all()

    def _kept(self) -> dict[str, Any]:
        return {
            "job": self._order.job,
            "state": self._state.value,
            "reason": self._reason,
            "step": self._journal.step,
            "metrics": dict(self._journal.latest),
            "checkpoint": self._checkpoint,
            "knobs": msgspec.to_builtins(self._knobs),
            "view": self._view,
            "members": sorted(self._members),
            "leaving": sorted(self._leaving),
            "stop": self._stop[0] if self._stop is not None else None,
            "runs": self._facts.of_job(),
        }

    def _remember(self) -> None:
        """Go on from what a controller before this one has written."""
        status = json.loads(self._folder.read("status.json"))
        self._state, self._reason = JobState(status["state"]), status["reason"]
        self._checkpoint, self._view = status["checkpoint"], status["view"]
        self._checkpoint = self._newest_checkpoint()
        self._members, self._leaving = frozenset(status["members"]), set(status["leaving"])
        self._knobs = msgspec.convert(status["knobs"], Knobs)
        if status["stop"] is not None:
            self._stop = (status["stop"], time.monotonic() + _FORCE_AFTER_S)
        if self._state.is_terminal:
            self._ended.set()

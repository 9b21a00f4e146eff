"""The controller's loop: look, `reconcile`, carry out, note the reason. All decisions are `raysync.control`'s."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayError

from actors.job.actor_group import ActorGroup
from actors.job.cluster import draining
from actors.job.executor import Executor
from actors.job.history import History
from actors.job.observed import Observed
from actors.job.steering import Steering
from actors.job.watch import Watch
from actors.shell.coordinator import Progress
from actors.shell.worker import FINAL
from actors.storage.folder import MODEL, Folder, checkpoint_name
from actors.storage.journal import Journal
from actors.storage.keeper import Keeper
from actors.storage.retry import Backoff
from raysync.address import COORDINATOR, Address, Role
from raysync.control.budgets import cause_of
from raysync.control.controller_memory import Memory, wanted_workers
from raysync.control.placing import replica_of
from raysync.control.reconcile import Act, Life, Plan, Seen, StopAsked, reconcile
from raysync.control.states import JobState
from raysync.engine import messages as m
from raysync.errors import NotRunning
from raysync.events import ActorStarted
from raysync.spec import JobSpec

_POLL_S = 0.5
_PENDING_POLL_S = 1.0
_FLUSH_S = 2.0
_DRAINED_S = 1.0
"""So often Ray is asked which nodes are about to go."""
_MODEL_S = 10.0
"""How long after a job's end its model may take to appear in a folder that is shared between machines."""
_NEW_COORDINATOR = (Act.LAUNCH, Act.RECOVER, Act.ROLL_BACK, Act.SUCCEED)
_RAY_S = 600.0
"""For how long Ray may fail before the job has."""

logger = logging.getLogger(__name__)


class ControlLoop:
    """Looks after one job from PENDING to its end. What must not be forgotten is in its memory; the rest is found by
    looking.
    """

    def __init__(
        self,
        spec: JobSpec,
        folder: Folder,
        keeper: Keeper,
        journal: Journal,
        group: ActorGroup,
        steering: Steering,
        last_words: Callable[[], None],
    ) -> None:
        self._spec, self._folder, self._keeper, self._journal = spec, folder, keeper, journal
        self._group, self._steering, self._last_words = group, steering, last_words
        self.observed = Observed(spec, group)
        self._history = History(keeper, journal, group, self.observed)
        self._executor = Executor(spec, folder, keeper, group, steering, self._history, journal)
        self._progress_call: Any = None
        self._finished, self._finished_s = False, 0.0
        self._num_steps: int | None = None
        """How many steps the present coordinator had decided on when last asked."""
        self._flushed_s = self._looked_s = 0.0
        self._orphaned_s: float | None = None
        self._is_asking = False
        self._covered: frozenset[Address] = frozenset()
        self._drained_s = 0.0
        self._watch, self._waited_s = Watch(group, group.introduce_again, self._history.note), _POLL_S
        self._storage, self._ray = Backoff(), Backoff()

    @property
    def _memory(self) -> Memory:
        return self._keeper.memory

    def live(self) -> None:
        """Look after the job to its end, through storage and a Ray that fail for a while."""
        has_adopted = False
        while not self._memory.state.is_terminal:
            try:
                if not has_adopted:
                    self._adopt()
                    has_adopted = True
                self._look()
                self._step()
                self._keeper.catch_up()
                self._storage.succeeded()
                self._ray.succeeded()
            except (OSError, RayError) as error:
                backoff = self._ray if isinstance(error, RayError) else self._storage
                wait_s = backoff.failed()
                if self._ray.failing_s > _RAY_S:
                    raise
                logger.warning("looking again in %g s: %s", wait_s, error)
                time.sleep(wait_s)

    def end(self, state: JobState, reason: str) -> None:
        """Clear up first, then say so: whoever reads the last state finds nothing left behind."""
        with contextlib.suppress(Exception):
            self.observed.look()
        with contextlib.suppress(Exception):
            self._group.dismiss_all()
        self._history.close(state, reason, self._last_words)

    def _adopt(self) -> None:
        """Take over what a controller before this one has left: all of it, or, if it never got to starting, nothing."""
        memory = self._memory
        self._group.adopt()
        memory.incarnation = self._group.life = max(memory.incarnation, self._group.life)
        self._journal.begin(memory.incarnation, takes_over=memory.is_succeeded)
        memory.checkpoint = self._executor.newest_checkpoint()  # one may have been completed meanwhile
        if memory.state is JobState.PENDING or (memory.state is JobState.STARTING and memory.view == 0):
            self._group.dismiss_all()
            memory.state = JobState.PENDING
            return
        self._group.use(
            self._spec.model_copy(update={"scale": self._spec.scale.model_copy(update={"replicas": memory.replicas})})
        )
        self._group.mark_missing(memory.members)

    # Looking

    def _look(self) -> None:
        """See what has changed since the last look."""
        if self._memory.state is JobState.PENDING:
            self._executor.look_for_room()
            if self._executor.shortage is not None:
                time.sleep(_PENDING_POLL_S)
            return
        if self._executor.shortage is not None and time.monotonic() - self._looked_s > _PENDING_POLL_S:
            self._looked_s = time.monotonic()
            self._executor.look_again()
        for member in self._group.introduce():
            if (hello := member.hello) is not None:
                where = (hello.node, hello.node_id, hello.pid)
                self._history.note(ActorStarted(str(member.name), self._group.link, *where))
        with contextlib.suppress(RayError, NotRunning):  # the next look tells what became of it
            self._steering.begin()
        if time.monotonic() - self._drained_s > _DRAINED_S:
            self._drained_s, self._group.draining = time.monotonic(), draining()
        self._watch.look(self._waited_s)
        self._ask_coordinator()
        if time.monotonic() - self._flushed_s > _FLUSH_S and self._history.is_writable:
            self._flushed_s = time.monotonic()
            self._history.flush()
            self.observed.look()

    def _ask_coordinator(self) -> None:
        """Ask for its progress, and wait for that or for another actor's answer."""
        coordinator = self._group.members.get(COORDINATOR)
        may_ask = self._progress_call is None and self._history.is_writable
        if may_ask and coordinator is not None and coordinator.introduced:
            self._progress_call = coordinator.actor.progress.remote(self._history.last_source, _POLL_S)
        extra = [self._progress_call] if self._progress_call is not None else []
        self._waited_s = self._watch.wait_s or _POLL_S
        for call in self._group.poll(self._waited_s, extra):
            self._progress_call = None
            with contextlib.suppress(RayError):  # its own answer tells of its death
                self._take_in(ray.get(call))

    def _take_in(self, progress: Progress) -> None:
        memory = self._memory
        self._is_asking = progress.is_asking
        if progress.is_asking or (memory.is_succeeded and not self._steering.has_begun):
            return
        if self._num_steps is not None and progress.next_step > self._num_steps:
            memory.retries = memory.retries.after_step()
        self._num_steps = progress.next_step
        is_written = self._history.take_in(progress)
        if progress.finished and is_written and not self._finished:
            self._finished, self._finished_s = True, time.monotonic()
        before = (memory.members, memory.knobs, memory.asked, memory.checkpoint)
        memory.view, memory.knobs = progress.view, progress.knobs
        memory.servers, memory.backups = progress.servers, progress.backups
        self._covered = frozenset(progress.covered)
        self._tell_stand_bys()
        memory.members = frozenset(progress.members)
        if progress.asked.version > memory.asked.version:
            memory.asked = progress.asked
        if progress.checkpoint is not None:
            memory.checkpoint = f"{self._folder.uri}/{checkpoint_name(progress.checkpoint)}"
        if before != (memory.members, memory.knobs, memory.asked, memory.checkpoint):
            self._history.save()

    def _tell_stand_bys(self) -> None:
        """Offer shards that follow none to the coordinator, and see how long a slot has been without its shard."""
        memory, hosts = self._memory, self._group.members.values()
        known = {*memory.servers, *memory.backups}
        up = [member for member in hosts if member.introduced and member.seen.life is Life.ALIVE]
        for who in [who for member in up for who in member.addresses if who.role is Role.SHARD and who.stage == 0]:
            if memory.servers and who not in known | self._draining:
                with contextlib.suppress(RayError, NotRunning, TimeoutError):
                    self._steering.ask("tell", m.StandBy(who=who))

    @property
    def _draining(self) -> frozenset[Address]:
        """Whatever is on a node that is about to go."""
        members = [member for member in self._group.members.values() if member.node in self._group.draining]
        return frozenset(who for member in members for who in member.addresses)

    @property
    def _orphaned_for_s(self) -> float:
        """How long a slot has been without its shard."""
        up = {
            who
            for member in self._group.members.values()
            if member.seen.life is not Life.DEAD
            for who in member.addresses
        }
        coordinator = self._group.members.get(COORDINATOR)
        is_led = coordinator is not None and coordinator.seen.life is Life.ALIVE and self._steering.has_begun
        if not is_led or self._is_asking or all(server in up for server in self._memory.servers):
            self._orphaned_s = None
            return 0.0
        self._orphaned_s = self._orphaned_s or time.monotonic()
        return time.monotonic() - self._orphaned_s

    # Deciding

    def _step(self) -> None:
        """Make one decision and carry it out."""
        plan = reconcile(self._seen())
        if plan.state.is_terminal:
            self.end(plan.state, plan.reason)
            return
        self._count_failures(plan)
        if any(action.act in _NEW_COORDINATOR for action in plan.actions):
            # First, so that a controller after this one knows what was begun.
            self._history.enter(plan.state, plan.reason)
        try:
            self._steering.tell_stop()
            for action in plan.actions:
                self._forget_coordinator(action.act)
                self._executor.carry_out(action)
        except (RayError, NotRunning, TimeoutError) as error:  # the next look tells what became of it
            logger.warning("%s", error)
            return
        if self._executor.shortage is not None and not self._group.members:
            self._history.enter(JobState.PENDING, self._executor.shortage)
        elif (plan.state, plan.reason) != (self._memory.state, self._memory.reason):
            self._history.enter(plan.state, plan.reason)

    def _forget_coordinator(self, act: Act) -> None:
        """Expect nothing more of the coordinator before the one that is about to be started."""
        if act in _NEW_COORDINATOR:
            self._progress_call, self._num_steps, self._finished, self._is_asking = None, None, False, False
            self._history.restarted()

    def _seen(self) -> Seen:
        memory, stop = self._memory, self._memory.stop
        members = self._group.members.values()
        lacks_model = self._finished and stop is None and self._folder.size(f"{FINAL}/{MODEL}") is None
        still_waits = lacks_model and time.monotonic() - self._finished_s < _MODEL_S
        return Seen(
            state=memory.state,
            actors={address: member.seen for member in members for address in member.addresses},
            members=memory.members,
            leaving=memory.leaving,
            wanted_workers=wanted_workers(memory, lambda: self._executor.num_first),
            spares=frozenset(member.name for member in members if member.is_spare),
            num_spares=self._executor.num_spares,
            min_workers=self._spec.scale.min_workers,
            draining=self._draining,
            covered=self._covered,
            num_shards=self._spec.scale.shards,
            serving=memory.servers,
            backups=memory.backups,
            num_backups=memory.replicas,
            orphaned_s=self._orphaned_for_s,
            is_asking=self._is_asking,
            num_stages=self._spec.scale.stages,
            shards_in_workers=self._spec.scale.shards_in == "workers",
            shortage=self._executor.shortage,
            has_begun=memory.view > 0,
            has_finished=self._finished and not still_waits,
            lacks_model=lacks_model,
            is_paused=bool(memory.knobs.values["pause"]),
            paused_by=memory.paused_by,
            stop=None if stop is None else StopAsked(stop.reason, self._steering.is_stop_overdue),
            has_checkpoint=memory.checkpoint is not None,
            retries=memory.retries,
            now_s=time.time(),
            rolls_back=self._spec.on_divergence == "rollback",
        )

    def _count_failures(self, plan: Plan) -> None:
        """Take note of what this plan answers; the deaths of one look together, since a lost node is one incident."""
        memory, now_s = self._memory, time.time()
        removed = [action.who for action in plan.actions if action.act is Act.REMOVE_DEAD and action.who is not None]
        seen = {who: self._group.members[who].seen for who in removed}
        dead = {who: (cause_of(who, found.cause), found.detail) for who, found in seen.items()}
        started = [who for index in range(self._group.next_worker) for who in replica_of(self._spec, index)]
        memory.retries = memory.retries.after_deaths(dead, started, now_s)
        for cause in [action.cause for action in plan.actions if action.cause is not None]:
            memory.retries = memory.retries.after_failure(cause, plan.reason, now_s)

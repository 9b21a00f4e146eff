"""Carries out what was decided about a job: launch, add, retire, remove dead, dismiss, renew, recover."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any

from ray.exceptions import RayError

from actors.job.actor_group import ActorGroup
from actors.job.history import History
from actors.job.steering import Steering
from actors.storage.folder import Folder, completed, read_manifest
from actors.storage.journal import Journal
from actors.storage.keeper import Keeper
from actors.storage.saved import damage, newest_sound
from raysync.address import COORDINATOR, Address, Role, shard
from raysync.control.placing import replica_of, with_backups
from raysync.control.reconcile import Act, Action, Life
from raysync.control.resuming import SHORT_OF_ROOM_S, starting
from raysync.engine import messages as m
from raysync.events import Notice, WorkerDied
from raysync.spec import JobSpec

_MAX_LOST_SPARES = 5
"""So many spares may be lost one after the other before they are needed."""

logger = logging.getLogger(__name__)


class Executor:
    """The acts of a plan; each may be repeated without harm, and leaves nothing half done if it cannot be now."""

    def __init__(
        self,
        spec: JobSpec,
        folder: Folder,
        keeper: Keeper,
        group: ActorGroup,
        steering: Steering,
        history: History,
        journal: Journal,
    ) -> None:
        self._spec, self._folder, self._keeper, self._group = spec, folder, keeper, group
        self._steering, self._history, self._journal = steering, history, journal
        self._memory = keeper.memory
        self.shortage: str | None = None
        """Why the workers that are missing cannot be started now."""
        self._short_since_s: float | None = None
        """Since when there has been no room for a launch."""
        self._num_launched = self._lost_spares = 0
        self._unplaced: tuple[Address, ...] = ()
        """The stage that a pipeline lacks and that could not be started; empty if a whole replica could not."""

    def carry_out(self, action: Action) -> None:
        """Do one thing."""
        logger.info("%s", action.act.value if action.who is None else f"{action.act.value} {action.who.spoken}")
        match action:
            case Action(Act.LAUNCH):
                self._launch()
            case Action(Act.ADD, None):
                self._unplaced = ()
                self.shortage = self._group.add_replica()
            case Action(Act.ADD, Address() as who):
                self._unplaced = (who,)
                self.shortage = self._group.add(who)
            case Action(Act.SPARE):
                self._unplaced = ()
                self.shortage = self._group.add_spare()
            case Action(Act.CALL_IN, Address() as who):
                self._group.members[who].call_in()
                self._lost_spares = 0
            case Action(Act.RETIRE, Address() as who):
                self._steering.ask("tell", m.Leave(sender=who))
                self._memory.leaving |= {who}
            case Action(Act.LEAVE_OUT, Address() as who):
                self._steering.ask("tell", m.Died(who=who))
            case Action(Act.REMOVE_DEAD, Address() as who):
                self._remove_dead(who)
            case Action(Act.DISMISS, Address() as who):
                self._dismiss(who)
            case Action(Act.RENEW, Address() as who):
                self._renew(who)
            case Action(Act.PROMOTE, Address() as who):
                self._promote(who)
            case Action(Act.HAND_OVER, Address() as who):
                self._hand_over(who)
            case Action(Act.STAND_BY, Address() as who):
                self._stand_by(who)
            case Action(Act.SUCCEED, Address() as who):
                self._succeed(who)
            case Action(Act.RECOVER):
                self._recover()
            case Action(Act.ROLL_BACK):
                self._roll_back()

    @property
    def num_first(self) -> int:
        """How many workers the present launch has, or the next one will have."""
        return self._num_launched or len({who.index for who in self.first_workers()})

    def look_for_room(self) -> None:
        """See what is missing for a launch."""
        try:
            workers = self.first_workers()
        except OSError as error:
            self.shortage = f"{self._memory.resume} cannot be read now: {error}"
            return
        self._is_short(self._group.shortage(workers))

    def _is_short(self, shortage: str | None) -> None:
        self.shortage = shortage
        if shortage is not None:
            self._short_since_s = self._short_since_s or time.monotonic()

    def look_again(self) -> None:
        """See whether what could not be started fits now."""
        lacking = self._unplaced or replica_of(self._spec, self._group.next_worker)
        self.shortage = self._group.shortage(lacking)

    def newest_checkpoint(self) -> str | None:
        """Return what a recovery would go back to, if that is found to be as it was written."""
        done = completed(self._folder)
        return f"{self._folder.uri}/{done[-1]}" if done else self._memory.checkpoint

    def first_workers(self) -> list[Address]:
        """Return the workers of the next launch: those of the checkpoint it continues, after a while only as many as
        there is room for; or as many as are wanted.
        """
        manifest = self._manifest()
        if manifest is None:
            indices: Iterable[int] = range(int(self._memory.asked.values["workers"] or 0))
        else:
            indices = self._starting(manifest["workers"])
        return sorted(who for index in indices for who in replica_of(self._spec, index))

    def _starting(self, workers: Sequence[int]) -> list[int]:
        first, since_s = starting(self._spec, workers), self._short_since_s
        if since_s is None or time.monotonic() - since_s < SHORT_OF_ROOM_S:
            return first
        return starting(self._spec, workers, self._group.num_fitting([replica_of(self._spec, one) for one in first]))

    @property
    def num_spares(self) -> int:
        """How many workers should stand by: none any more once so many have been lost one after the other."""
        return self._spec.scale.spares if self._lost_spares <= _MAX_LOST_SPARES else 0

    def _remove_dead(self, who: Address) -> None:
        if self._group.members[COORDINATOR].introduced:
            self._steering.ask("tell", m.Died(who=who))
        why = self._group.members[who].seen.detail
        self._history.note(WorkerDied(who.index, why if who.role is Role.WORKER else f"{who.spoken}: {why}"))
        self._dismiss(who)

    def _dismiss(self, who: Address) -> None:
        """Clear an actor away; a replica has left once all of it has."""
        self._lost_spares += self._group.members[who].is_spare
        self._group.dismiss(who)
        if not any(other.role is who.role and other.index == who.index for other in self._group.members):
            self._memory.leaving -= {who.at(0)}

    def _renew(self, who: Address) -> None:
        """Start an actor again that held nothing."""
        logger.warning("%s died (%s) and is started again", who, self._group.members[who].seen.detail)
        self._group.renew(who)

    def _promote(self, who: Address) -> None:
        """Tell the coordinator of a shard's death; once it can be told, clear up after the actor."""
        coordinator = self._group.members.get(COORDINATOR)
        if coordinator is None or not self._steering.has_begun or coordinator.seen.life is not Life.ALIVE:
            return  # once it has been told to begin
        self._steering.ask("tell", m.Died(who=who))
        host = self._group.host_of(who)
        if host is not None and host.name.role is Role.SHARD and who == max(other.at(0) for other in host.addresses):
            self._group.dismiss(host.name)

    def _hand_over(self, who: Address) -> None:
        """Have the job do without a shard; once nothing in its process is needed any more, end that."""
        needed = {*self._memory.servers, *self._memory.backups}
        host = self._group.host_of(who)
        if who in needed:
            self._steering.ask("tell", m.Died(who=who))
        elif host is not None and host.name.role is Role.SHARD and not needed & {one.at(0) for one in host.addresses}:
            self._group.dismiss(host.name)

    def _stand_by(self, slot: Address) -> None:
        """Start a shard that may follow the one of a slot, under a number that no shard had."""
        memory = self._memory
        memory.generations += 1
        self._keeper.save()  # first: no number is used twice
        newcomer = shard(slot.index + self._spec.scale.shards * memory.generations)
        self._group.stand_by(newcomer, self._group.node_of(memory.servers[slot.index]))

    def _succeed(self, who: Address) -> None:
        """Start another coordinator; it numbers its events anew, and is told whom to ask once it can be."""
        memory = self._memory
        memory.successions += 1
        self._begin_incarnation(takes_over=True)
        self._keeper.save()  # first: a controller after this one must know that it has to ask
        self._group.renew(who, self._history.now_s)

    def _begin_incarnation(self, *, takes_over: bool) -> None:
        self._memory.incarnation += 1
        self._memory.is_succeeded = takes_over
        self._group.life = self._memory.incarnation
        self._journal.begin(self._memory.incarnation, takes_over=takes_over)

    def _recover(self) -> None:
        """Go back to the newest checkpoint with everything; which one that is comes first, for it may fail. With none
        that is sound the job ends at the next look.
        """
        memory = self._memory
        has_one = memory.checkpoint is not None
        memory.checkpoint = self._sound_checkpoint()
        if memory.checkpoint is None and has_one:
            return
        memory.resume = memory.checkpoint
        self._group.dismiss_all()
        memory.view, memory.members, memory.leaving = 0, frozenset(), frozenset()
        self._launch()

    def _sound_checkpoint(self) -> str | None:
        """Return the newest checkpoint whose every byte is as it was written; tell of those that are passed over."""
        first = self._order_resume
        found, wrong = newest_sound(self._folder)
        for name, problem in wrong.items():
            self._history.note(Notice(f"{name} is passed over, an older one is gone on from: {problem}"))
        if found is not None:
            return f"{self._folder.uri}/{found}"
        return None if first is None or damage(Folder(first)) is not None else first

    @property
    def _order_resume(self) -> str | None:
        """The checkpoint of another job that this one was to go on from."""
        resume = self._memory.resume
        return None if resume is None or resume.startswith(f"{self._folder.uri}/") else resume

    def _roll_back(self) -> None:
        """Go back to the last checkpoint, at half the learning rate from there on."""
        lr = self._memory.asked.values.get("lr")
        if isinstance(lr, float | int):
            self._steering.turn({"lr": lr / 2}, None, False, "on_divergence: rollback")
        self._recover()

    def _launch(self) -> None:
        """Start all actors, or say what is missing for it; then the job waits."""
        memory = self._memory
        try:
            workers, manifest = self.first_workers(), self._manifest()
        except OSError as error:
            self._is_short(f"{memory.resume} cannot be read now: {error}")
            return
        self._num_launched = 0
        memory.servers, memory.backups = (), ()
        self._begin_incarnation(takes_over=False)
        places = self._group.reserve(workers)
        self._is_short(places if isinstance(places, str) else None)
        if isinstance(places, str):
            return
        self._num_launched = len({who.index for who in workers})
        self._leave_out(workers, () if manifest is None else manifest["workers"])
        spec = with_backups(self._spec, len({node for node, _ in places}))
        memory.replicas = spec.scale.replicas or 0
        self._group.use(spec)
        try:
            self._group.launch(places, workers, memory.resume, manifest["elapsed_s"] if manifest else 0.0)
        except RayError as error:
            self._group.dismiss_all()
            self.shortage = f"its actors could not be started now: {error}"

    def _leave_out(self, workers: Sequence[Address], saved: Sequence[int]) -> None:
        """Take note of the workers of a checkpoint that are not started again; their numbers are not used again."""
        memory, launched = self._memory, {who.index for who in workers}
        first = [replica_of(self._spec, index)[0] for index in saved if index not in launched]
        memory.absent, self._short_since_s = tuple(first), None
        self._group.next_worker = max(self._group.next_worker, *(index + 1 for index in saved), 0)
        if first:
            kind = "workers" if self._spec.scale.stages == 1 else "pipelines"
            left_out = ", ".join(str(who.index) for who in first)
            self._history.note(
                Notice(
                    f"goes on with {len(launched)} of the {len(saved)} {kind} of its checkpoint: there is no room for "
                    f"{left_out}, or scale.max_workers is less; what they had not sent counts as lost"
                )
            )

    def _manifest(self) -> dict[str, Any] | None:
        resume = self._memory.resume
        return read_manifest(Folder(resume)) if resume is not None else None

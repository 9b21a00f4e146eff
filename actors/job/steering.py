"""What is said to a job's coordinator, and what is kept for it as long as it cannot be told."""

from __future__ import annotations

import threading
import time
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from actors.job.actor_group import ActorGroup
from actors.job.actor_record import ActorRecord
from actors.storage.journal import Journal
from actors.storage.keeper import Keeper
from raysync.address import COORDINATOR, Role
from raysync.control.controller_memory import Memory, StopWanted
from raysync.control.reconcile import Life
from raysync.engine import messages as m
from raysync.errors import NotRunning
from raysync.knobs import Knobs, overlaid, turn
from raysync.spec import JobSpec

_ASK_S = 10.0
"""One that does not answer for longer is frozen, and another takes its place."""


class Steering:
    """Turns knobs, asks for checkpoints and ends the job, whether its coordinator is there or still to come.

    Until a coordinator has begun, turns are checked and kept here; it gets them with the word to begin, so that they
    are in force from its first decision on. A coordinator that went back to a checkpoint gets what was turned since.
    """

    def __init__(self, spec: JobSpec, keeper: Keeper, group: ActorGroup, journal: Journal) -> None:
        self._spec, self._keeper, self._group, self._journal = spec, keeper, group, journal
        self._turning = threading.Lock()
        self._begun: ActorRecord | None = None
        """The coordinator that has been told to begin."""
        self._stop_told_to: ActorRecord | None = None

    @property
    def _memory(self) -> Memory:
        return self._keeper.memory

    def turn(self, changes: dict[str, Any], expected_version: int | None, dry_run: bool, by: str = "") -> Knobs:
        """Return the knobs as the changes will make them, or would; raise if they cannot be."""
        with self._turning:
            if self._memory.state.is_terminal:
                raise self._not_running()
            knobs = self._turned(changes, expected_version, dry_run, by)
            if not dry_run:
                self._memory.asked = knobs
                self._memory.paused_by = by if "pause" in changes else self._memory.paused_by
                self._keeper.save()
        return knobs

    def take(self, knobs: Knobs) -> None:
        """Take over what was turned before there was a controller, as far as it is not known yet."""
        with self._turning:
            asked = overlaid(self._memory.asked, self._memory.early, knobs)
            if asked is self._memory.asked:
                return
            self._memory.asked, self._memory.early = asked, knobs
            self._keeper.save()
            if self.has_begun:
                self.ask("tell", m.Begin(knobs=asked))

    def begin(self) -> None:
        """Tell a coordinator that has been introduced to begin, once."""
        coordinator = self._group.members.get(COORDINATOR)
        if coordinator is None or not coordinator.introduced or coordinator is self._begun:
            return
        replicas = [found for found in self._group.members.values() if found.name.role in (Role.WORKER, Role.STAGE)]
        there = [found for found in replicas if found.seen.life is not Life.DEAD and not found.is_spare]
        num_workers = len({found.name.index for found in there})
        with self._turning:
            begin = m.Begin(
                knobs=self._memory.asked,
                workers=num_workers or None,
                gone=self._memory.absent,
                succession=self._succession(),
            )
            self.ask("tell", begin)
            self._begun = coordinator

    def _succession(self) -> m.Succession | None:
        """Return whom a coordinator asks that takes over; None for the first one, and for one with a checkpoint."""
        memory = self._memory
        if not memory.is_succeeded:
            return None
        found = self._group.members.values()
        up = (Life.STARTING, Life.ALIVE)
        cores = [who for member in found if member.seen.life in up and member.introduced for who in member.addresses]
        ended = {who.at(0) for member in found if member.seen.life is Life.GONE for who in member.addresses}
        return m.Succession(
            life=memory.successions,
            roster=tuple(who for who in sorted(cores) if who.role not in (Role.COORDINATOR, Role.EVALUATOR)),
            parted=tuple(sorted(who for who in ended if who.role in (Role.WORKER, Role.STAGE))),
            told_step=self._told_step,
            told=() if self._is_bounded else tuple(m.Told(*told) for told in self._journal.decided),
        )

    @property
    def _is_bounded(self) -> bool:
        """Whether each worker has its own clock, and decisions of its own."""
        return self._spec.strategy.needs.pacing == "bounded"

    @property
    def _told_step(self) -> int:
        """The last step that was decided on for all; where each worker has its own clock, the last that was told of."""
        if self._is_bounded:
            return self._journal.step - 1
        return self._journal.decided_step

    def stop(self, wanted: StopWanted) -> None:
        """Have the job end; asking again may only shorten the bound."""
        first = self._memory.stop or wanted
        force_at_s = min(first.force_at_s, wanted.force_at_s)
        self._memory.stop = StopWanted(first.reason, first.with_checkpoint, force_at_s)
        self._keeper.save()

    def tell_stop(self) -> None:
        """Tell the coordinator, once it can be told, that the job is to end."""
        stop, coordinator = self._memory.stop, self._group.members.get(COORDINATOR)
        if stop is None or coordinator is None or coordinator is not self._begun or coordinator is self._stop_told_to:
            return
        if coordinator.seen.life is not Life.ALIVE:
            return  # whoever takes over is told
        if stop.with_checkpoint and self._memory.view > 0:
            self.ask("tell", m.TakeCheckpoint())
        self.ask("tell", m.Stop(reason=stop.reason))
        self._stop_told_to = coordinator

    @property
    def is_stop_overdue(self) -> bool:
        """Whether a job that was to end in good order has not within its bound."""
        return self._memory.stop is not None and time.time() > self._memory.stop.force_at_s

    def ask(self, method: str, *arguments: Any) -> Any:
        """Ask the coordinator; raises what it raises."""
        member = self._group.members.get(COORDINATOR)
        if member is None or not member.introduced:
            raise self._not_running()
        try:
            return ray.get(getattr(member.actor, method).remote(*arguments), timeout=_ASK_S)
        except RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else error from None

    @property
    def has_begun(self) -> bool:
        """Whether the present coordinator has been told to begin."""
        return self._begun is not None and self._group.members.get(COORDINATOR) is self._begun

    def _turned(self, changes: dict[str, Any], expected_version: int | None, dry_run: bool, by: str) -> Knobs:
        if self.has_begun:
            try:
                return self.ask("turn", changes, expected_version, dry_run, by)  # type: ignore[no-any-return]
            except RayActorError:
                pass  # it has just died: kept for the one that comes after it
        return turn(self._spec, self._memory.asked, changes, expected_version)

    def _not_running(self) -> NotRunning:
        return NotRunning(self._memory.job, self._memory.state.value, self._memory.reason)

"""Asks every actor of a job whether it is there, and marks those that do not answer: frozen is dead until it wakes."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayError

from actors.job.actor_group import ActorGroup
from actors.job.actor_record import ActorRecord
from actors.shell.process import is_stopped
from raysync.control.pulse import GIVEN_UP_S, SUSPECT_S
from raysync.control.reconcile import ActorSeen, Life
from raysync.control.roles import ROLES, Death
from raysync.events import StuckStep

_EVERY_S = 0.3
_SOON_S = 0.1
_HERE = (Life.ALIVE, Life.FROZEN)

logger = logging.getLogger(__name__)


class Watch:
    """One question at a time for every actor that has been introduced."""

    def __init__(
        self, group: ActorGroup, on_wake: Callable[[ActorRecord], None], on_stuck: Callable[[StuckStep], None]
    ) -> None:
        self._group, self._on_wake, self._on_stuck = group, on_wake, on_stuck
        self._calls: dict[Any, ActorRecord] = {}
        self._looked_s = time.monotonic()
        self._lag_s = 0.0
        """How much later than it meant to this process has looked, of late."""

    @property
    def wait_s(self) -> float | None:
        """How soon to look again; None if nothing is overdue."""
        now_s = time.monotonic()
        is_late = any(member.pulse.silent_s(now_s) > _EVERY_S for member in self._group.members.values())
        return _SOON_S if is_late else None

    def look(self, meant_s: float) -> None:
        """Take in answers, ask again, and mark who is frozen or has woken; `meant_s` is how long after the last look
        this one was to be.
        """
        now_s = time.monotonic()
        self._lag_s = max(0.5 * self._lag_s, now_s - self._looked_s - meant_s)
        self._looked_s = now_s
        self._take_in(now_s)
        for member in list(self._group.members.values()):
            if (member.introduced and member.seen.life in _HERE) or member.seen.life is Life.SPARE:
                self._tend(member, now_s)

    def _tend(self, member: ActorRecord, now_s: float) -> None:
        pulse = member.pulse
        if pulse.asked_s is None:
            pulse.ask(now_s)
            self._calls[member.actor.pulse.remote()] = member
            return
        silent_s = pulse.silent_s(now_s)
        if silent_s <= SUSPECT_S:
            return
        if pulse.is_frozen(now_s, is_stopped=self._is_stopped(member), lag_s=self._lag_s):
            self._freeze(member, silent_s)

    def _is_stopped(self, member: ActorRecord) -> bool:
        """Return whether the machine of an actor says that its process does not run; a neighbour is asked where that is
        another machine.
        """
        if member.hello is None:
            return False
        if member.hello.node_id == ray.get_runtime_context().get_node_id():
            return is_stopped(member.hello.pid)
        for other in self._group.members.values():
            if other is not member and other.hello is not None and other.hello.node_id == member.hello.node_id:
                with contextlib.suppress(RayError):
                    return bool(ray.get(other.actor.sees_stopped.remote(member.hello.pid), timeout=_SOON_S))
        return False

    def _freeze(self, member: ActorRecord, silent_s: float) -> None:
        """A worker may come back, and is left out meanwhile; another takes the place of anything else."""
        detail = f"it has not answered for {silent_s:.1f} s"
        is_worker = all(ROLES[who.role].death is Death.REPLACE for who in member.addresses) and not member.is_spare
        if not is_worker or (member.frozen_s is not None and time.monotonic() - member.frozen_s > GIVEN_UP_S):
            logger.warning("%s is frozen and is ended: %s", member.name, detail)
            ray.kill(member.actor, no_restart=True)
            member.seen = ActorSeen(Life.DEAD, detail)
        elif member.seen.life is not Life.FROZEN:
            logger.warning("%s is frozen: %s", member.name, detail)
            member.frozen_s = time.monotonic()
            member.seen = ActorSeen(Life.FROZEN, detail)

    def _take_in(self, now_s: float) -> None:
        if not self._calls:
            return
        done, _ = ray.wait([*self._calls], num_returns=len(self._calls), timeout=0)
        for call in done:
            member = self._calls.pop(call)
            try:
                told = ray.get(call)
            except RayError:
                member.pulse.asked_s = None  # how it ended is told by its `wait`; else it is asked again
                continue
            member.pulse.answered(now_s)
            if told is not None:
                logger.warning("%s computes step %d for %.0f s, at %s", told.who, told.step, told.for_s, told.where)
                self._on_stuck(told)
            if member.seen.life is Life.FROZEN:
                logger.warning("%s is back", member.name)
                member.seen, member.frozen_s = ActorSeen(Life.ALIVE), None
                self._on_wake(member)

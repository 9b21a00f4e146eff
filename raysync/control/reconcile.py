"""What to do about a job: a pure function from what was seen to the next state, its reason, and the acts that lead on.

Whoever carries the plan out looks again afterwards; every act may be repeated without harm.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec

from raysync.control.states import JobState

MAX_DEATHS_IN_A_ROW = 5
"""So many workers may die without a step between them; more, and the job would die again and again."""
MAX_RECOVERIES_IN_A_ROW = 3


class Life(StrEnum):
    """What is known of an actor."""

    STARTING = "starting"
    ALIVE = "alive"
    GONE = "gone"
    """it has ended in good order"""
    DEAD = "dead"
    """its process or node is gone"""
    FAILED = "failed"
    """its code raised; it would raise again"""


class ActorSeen(NamedTuple):
    """An actor and, if it is dead or failed, why."""

    life: Life
    detail: str = ""


class StopAsked(NamedTuple):
    """Somebody wants the job to end."""

    reason: str
    is_overdue: bool
    """It was asked in good order and has not ended within the bound."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a decision about a job may depend on."""

    state: JobState
    servers: Mapping[str, ActorSeen] = msgspec.field(default_factory=dict)
    """Coordinator and shards by address."""
    workers: Mapping[int, ActorSeen] = msgspec.field(default_factory=dict)
    members: frozenset[int] = frozenset()
    """Workers in the present view."""
    leaving: frozenset[int] = frozenset()
    """Workers that have been asked to leave."""
    wanted_workers: int
    shortage: str | None = None
    """Why the workers that are missing cannot be placed now."""
    has_begun: bool = False
    """The first view has been formed."""
    has_finished: bool = False
    """The coordinator has heard everybody's farewell."""
    is_paused: bool = False
    stop: StopAsked | None = None
    has_checkpoint: bool = False
    deaths_in_a_row: int = 0
    recoveries_in_a_row: int = 0


class Act(StrEnum):
    """What the controller can do."""

    LAUNCH = "launch"
    """start all actors"""
    ADD = "add"
    """start one more worker"""
    RETIRE = "retire"
    """ask a worker to leave"""
    BURY = "bury"
    """tell the coordinator of a death and clear up"""
    DISMISS = "dismiss"
    """clear up after a worker that has left"""
    RECOVER = "recover"
    """start everything again from the last checkpoint"""


class Action(NamedTuple):
    """One act, on one worker where that makes sense."""

    act: Act
    worker: int | None = None


class Plan(NamedTuple):
    """The next state, why, and what to do."""

    state: JobState
    reason: str
    actions: tuple[Action, ...] = ()


def reconcile(seen: Seen) -> Plan:
    """Return what to do next."""
    if seen.state.is_terminal:
        return Plan(seen.state, "it has ended")
    return _end(seen) or _mend_servers(seen) or (_launch(seen) if seen.state is JobState.PENDING else _tend(seen))


def _end(seen: Seen) -> Plan | None:
    names = {**seen.servers, **{f"worker/{worker}": found for worker, found in seen.workers.items()}}
    for name, found in sorted(names.items()):
        if found.life is Life.FAILED:
            return Plan(JobState.FAILED, f"{name}: {found.detail}")
    if seen.has_finished:
        if seen.stop is not None:
            return Plan(JobState.STOPPED, seen.stop.reason)
        return Plan(JobState.SUCCEEDED, "the last step is done and everybody has said farewell")
    if seen.stop is not None and seen.stop.is_overdue:
        return Plan(JobState.STOPPED, f"{seen.stop.reason}; it did not end in good order and was ended by force")
    if seen.deaths_in_a_row > MAX_DEATHS_IN_A_ROW:
        last = next((found.detail for found in seen.workers.values() if found.life is Life.DEAD), "")
        return Plan(JobState.FAILED, f"{seen.deaths_in_a_row} workers died without a step between them; last: {last}")
    return None


def _mend_servers(seen: Seen) -> Plan | None:
    dead = {name: found.detail for name, found in sorted(seen.servers.items()) if found.life is Life.DEAD}
    if not dead:
        return None
    name, detail = next(iter(dead.items()))
    if not seen.has_checkpoint:
        return Plan(
            JobState.FAILED,
            f"{name} died ({detail}) and there is no checkpoint to go on from: set checkpoint.every_rounds",
        )
    if seen.recoveries_in_a_row >= MAX_RECOVERIES_IN_A_ROW:
        return Plan(
            JobState.FAILED, f"{name} died ({detail}) after {seen.recoveries_in_a_row} recoveries without a step"
        )
    return Plan(JobState.RECOVERING, f"{name} died ({detail}): back to the last checkpoint", (Action(Act.RECOVER),))


def _launch(seen: Seen) -> Plan:
    if seen.stop is not None:
        return Plan(JobState.STOPPED, f"{seen.stop.reason}, before it started")
    if seen.shortage is not None:
        return Plan(JobState.PENDING, seen.shortage)
    return Plan(JobState.STARTING, "it fits", (Action(Act.LAUNCH),))


def _tend(seen: Seen) -> Plan:
    dead = [worker for worker, found in seen.workers.items() if found.life is Life.DEAD]
    gone = [worker for worker, found in seen.workers.items() if found.life is Life.GONE]
    if {*gone} & seen.members - seen.leaving:
        burials = tuple(Action(Act.BURY, worker) for worker in dead)
        return Plan(seen.state, "the last step is done; workers say farewell", burials)
    live = [w for w, found in sorted(seen.workers.items()) if found.life in (Life.STARTING, Life.ALIVE)]
    staying = [worker for worker in live if worker not in seen.leaving]
    actions = [Action(Act.BURY, worker) for worker in dead] + [Action(Act.DISMISS, worker) for worker in gone]
    if seen.stop is not None:
        return Plan(JobState.STOPPING, seen.stop.reason, tuple(actions))
    missing = seen.wanted_workers - len(staying)
    if missing > 0 and seen.shortage is None:
        actions += [Action(Act.ADD)] * missing
    if missing < 0 and seen.has_begun:
        actions += [Action(Act.RETIRE, worker) for worker in staying[missing:] if worker in seen.members]
    return Plan(*_state(seen, dead, live, missing), tuple(actions))


def _state(seen: Seen, dead: list[int], live: list[int], missing: int) -> tuple[JobState, str]:
    starting = [worker for worker in live if worker not in seen.members | seen.leaving]
    if dead:
        return JobState.RECOVERING, f"worker {dead[0]} died ({seen.workers[dead[0]].detail}); a new one takes its place"
    if not seen.has_begun:
        up = sum(seen.workers[worker].life is Life.ALIVE for worker in live)
        return JobState.STARTING, f"{up} of {seen.wanted_workers} workers are up"
    if missing > 0 and seen.shortage is not None:
        return JobState.RESIZING, f"{len(live)} of {seen.wanted_workers} workers: {seen.shortage}"
    if seen.is_paused:
        return JobState.PAUSED, "somebody paused it"
    if missing or starting or seen.leaving & {*live}:
        if seen.state is JobState.RECOVERING:
            return JobState.RECOVERING, "the replacement is on its way"
        return JobState.RESIZING, f"{len(seen.members)} workers train, {seen.wanted_workers} are wanted"
    return JobState.RUNNING, f"{len(live)} workers train"

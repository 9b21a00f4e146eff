"""What to do about a job: a pure function from what was seen to the next state, its reason, and the acts that lead on.

Whoever carries the plan out looks again afterwards; every act may be repeated without harm.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec

from raysync.address import COORDINATOR, Address, Role, shard
from raysync.control.budgets import BUDGETS, Cause, Retries, cause_of
from raysync.control.roles import ROLES, Death
from raysync.control.states import JobState

MAX_ORPHANED_S = 5.0
"""So long the backup of a shard that died may take to say that it knows all the shard has said."""


class Life(StrEnum):
    """What is known of an actor."""

    STARTING = "starting"
    ALIVE = "alive"
    FROZEN = "frozen"
    """it is there, and does not answer"""
    SPARE = "spare"
    """it is up, and takes the place of a worker when it is called in"""
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
    cause: Cause | None = None
    """What that came of, where it is not what its role says."""


class StopAsked(NamedTuple):
    """The job is to end."""

    reason: str
    is_overdue: bool
    """It was asked in good order and has not ended within the bound."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a decision about a job may depend on."""

    state: JobState
    actors: Mapping[Address, ActorSeen] = msgspec.field(default_factory=dict)
    """Every core that was started, and how the actor is that hosts it."""
    members: frozenset[Address] = frozenset()
    """Workers in the present view; a pipeline is named by its first stage."""
    leaving: frozenset[Address] = frozenset()
    """Workers that have been asked to leave."""
    wanted_workers: int
    spares: frozenset[Address] = frozenset()
    """Workers that were started to stand by and have not been called in."""
    num_spares: int = 0
    """How many should stand by."""
    min_workers: int = 1
    """With fewer no step is made."""
    draining: frozenset[Address] = frozenset()
    """Whatever is on a node that is about to go."""
    num_shards: int = 1
    serving: tuple[Address, ...] = ()
    """The shard of each slot, at the first stage, as far as that is known."""
    backups: tuple[Address | None, ...] = ()
    """Who follows each."""
    num_backups: int = 0
    """How many should."""
    covered: frozenset[Address] = frozenset()
    """Shards whose backup knows all they have said."""
    orphaned_s: float = 0.0
    """For how long a slot has been without its shard while somebody could have taken its place."""
    is_asking: bool = False
    """A new coordinator does not know yet what the last one knew."""
    num_stages: int = 1
    shards_in_workers: bool = False
    shortage: str | None = None
    """Why the workers that are missing cannot be placed now."""
    has_begun: bool = False
    """The first view has been formed."""
    has_finished: bool = False
    """The coordinator has heard every worker's farewell."""
    lacks_model: bool = False
    """It has finished, and the final model is not in the job's folder."""
    is_paused: bool = False
    paused_by: str = ""
    """Who set the knob, where that is known."""
    stop: StopAsked | None = None
    has_checkpoint: bool = False
    retries: Retries = Retries()
    """What has failed so far, as far as it counts."""
    now_s: float = 0.0
    """By the clock that the retries were counted with."""
    rolls_back: bool = False
    """What is not finite takes the job back to its last checkpoint."""

    def whose_death(self, means: Death) -> dict[Address, ActorSeen]:
        """Return the actors whose death means this, in order."""
        found = sorted(self.actors.items())
        return {address: seen for address, seen in found if ROLES[address.role].death is means}


class Act(StrEnum):
    """What the controller can do."""

    LAUNCH = "launch"
    """start all actors"""
    ADD = "add"
    """start one more worker or pipeline, or the stage that one lacks"""
    SPARE = "spare"
    """start a worker that stands by"""
    CALL_IN = "call_in"
    """let a worker that stands by join"""
    RETIRE = "retire"
    """ask a worker to leave"""
    LEAVE_OUT = "leave_out"
    """have the others go on without a worker that does not answer; it joins again when it wakes"""
    REMOVE_DEAD = "remove_dead"
    """tell the coordinator of a death and clear up"""
    DISMISS = "dismiss"
    """clear up after a worker that has left"""
    RENEW = "renew"
    """start an actor again that held nothing"""
    SUCCEED = "succeed"
    """start another coordinator, which asks all cores what they know"""
    PROMOTE = "promote"
    """have a shard's backup take its place, and clear up"""
    HAND_OVER = "hand_over"
    """do without a shard whose node is about to go: first in the view, then clear up"""
    STAND_BY = "stand_by"
    """start a shard that follows the one of a slot"""
    RECOVER = "recover"
    """start everything again from the last checkpoint"""
    ROLL_BACK = "roll_back"
    """the same at half the learning rate, since an actor came to numbers that are not finite"""


class Action(NamedTuple):
    """One act, on one actor where that makes sense."""

    act: Act
    who: Address | None = None
    cause: Cause | None = None
    """Whose budget it is made on, and who it is for has not been counted as dead."""


class Plan(NamedTuple):
    """The next state, why, and what to do."""

    state: JobState
    reason: str
    actions: tuple[Action, ...] = ()


def reconcile(seen: Seen) -> Plan:
    """Return what to do next."""
    if seen.state.is_terminal:
        return Plan(seen.state, "it has ended")
    mended = _end(seen) or _roll_back(seen) or _mend_servers(seen) or _succeed(seen)
    return mended or (_launch(seen) if seen.state is JobState.PENDING else _tend(seen))


def _end(seen: Seen) -> Plan | None:
    for address, found in sorted(seen.actors.items()):
        if found.life is Life.FAILED and not _is_to_roll_back(seen, found):
            return Plan(JobState.FAILED, f"{address}: {found.detail}")
    if seen.has_finished:
        if seen.stop is not None:
            return Plan(JobState.STOPPED, seen.stop.reason)
        if seen.lacks_model:
            return Plan(JobState.FAILED, _NO_MODEL)
        return Plan(JobState.SUCCEEDED, "the last step is done and every worker has said farewell")
    if seen.stop is not None and seen.stop.is_overdue:
        return Plan(JobState.STOPPED, f"{seen.stop.reason}; it did not end in good order and was ended by force")
    workers = seen.retries.of(Cause.WORKER)
    if workers.in_a_row > (BUDGETS[Cause.WORKER].tries or 0):
        told = f"workers died {workers.in_a_row} times without a step between them; last: {workers.last}"
        return Plan(JobState.FAILED, f"{told}; {BUDGETS[Cause.WORKER].remedy}")
    for address, found in seen.whose_death(Death.RENEW).items():
        if found.life is Life.DEAD and not seen.retries.allows(cause_of(address, found.cause), seen.now_s):
            return Plan(JobState.FAILED, _spent(seen, address, found))
    return None


def _spent(seen: Seen, who: Address, found: ActorSeen, doing: str = "was started again") -> str:
    """Return the sentence for a failure that no retry is left for."""
    cause = cause_of(who, found.cause)
    between = " without a step between them" if BUDGETS[cause].ends_with_step else ""
    times = f"{seen.retries.count(cause, seen.now_s)} times{between}"
    return f"{who} died ({found.detail}) after it {doing} {times}; {BUDGETS[cause].remedy}"


def _is_to_roll_back(seen: Seen, found: ActorSeen) -> bool:
    return seen.rolls_back and found.life is Life.FAILED and found.cause is Cause.DIVERGENCE


def _roll_back(seen: Seen) -> Plan | None:
    """Go back to a checkpoint with what has diverged, a few times."""
    for address, found in sorted(seen.actors.items()):
        if not _is_to_roll_back(seen, found):
            continue
        if not seen.has_checkpoint:
            return Plan(JobState.FAILED, f"{address}: {found.detail}\nthere is no checkpoint to go back to yet")
        count = seen.retries.count(Cause.DIVERGENCE, seen.now_s)
        if not seen.retries.allows(Cause.DIVERGENCE, seen.now_s):
            return Plan(JobState.FAILED, f"{address}: {found.detail}\nthe job went back to a checkpoint {count} times")
        back = f"back to the last checkpoint at half the learning rate, time {count + 1}"
        action = Action(Act.ROLL_BACK, address, Cause.DIVERGENCE)
        return Plan(JobState.RECOVERING, f"{address}: {found.detail}\n{back}", (action,))
    return None


_NO_MODEL = (
    "the last step is done, but final/model.pt is not in the job's folder: workers on several machines need a folder "
    "all of them see, or a URI such as s3://..."
)


def _mend_servers(seen: Seen) -> Plan | None:
    """Go back to a checkpoint if a shard is gone and no other can take its place."""
    lost = _lost_shards(seen)
    if not lost:
        return None
    name, detail = next(iter(lost.items()))
    if not seen.has_checkpoint and seen.has_begun:
        return Plan(
            JobState.FAILED,
            f"{name} died ({detail}) and there is no checkpoint to go on from: set checkpoint.every_rounds"
            f"{'' if seen.num_backups else ', or scale.replicas: 1, so that another shard takes its place'}",
        )
    found = seen.actors.get(name, ActorSeen(Life.DEAD))._replace(detail=detail)
    cause = cause_of(name, found.cause)
    if not seen.retries.allows(cause, seen.now_s):
        return Plan(JobState.FAILED, _spent(seen, name, found, "took the job back"))
    back = "back to the last checkpoint" if seen.has_checkpoint else "it had not begun to train, and starts again"
    actions = () if seen.retries.waits(cause, seen.now_s) else (Action(Act.RECOVER, None, cause),)
    return Plan(JobState.RECOVERING, f"{name} died ({detail}): {back}{_soon(seen, cause)}", actions)


def _soon(seen: Seen, cause: Cause) -> str:
    """Return how long a retry waits, in words; nothing if it is made now."""
    if not seen.retries.waits(cause, seen.now_s):
        return ""
    return f", {seen.retries.delay_s(cause):g} s after the last time"


def _lost_shards(seen: Seen) -> dict[Address, str]:
    """Return the shards that are gone and have no heir, with what is known of their end."""
    serving = {server.at(stage) for server in seen.serving for stage in range(seen.num_stages)}
    dead = {address: seen.actors[address].detail for address in _dead_shards(seen)}
    if not seen.serving:  # before the first view; or nobody has told yet who serves now
        return {} if seen.has_begun else dead
    waits = seen.orphaned_s <= MAX_ORPHANED_S
    lost = {who: why for who, why in dead.items() if who in serving and not (waits and _has_heir(seen, who))}
    gone = [who for who in sorted(serving) if who not in seen.actors and not (waits and _has_heir(seen, who))]
    return lost | dict.fromkeys(gone, "no shard could take its place")


def _dead_shards(seen: Seen) -> list[Address]:
    return [who for who, found in sorted(seen.actors.items()) if who.role is Role.SHARD and found.life is Life.DEAD]


def _has_heir(seen: Seen, who: Address) -> bool:
    """Return whether the backup of a shard is there to take its place."""
    slot = seen.serving.index(who.at(0))
    backup = seen.backups[slot] if slot < len(seen.backups) else None
    found = None if backup is None else seen.actors.get(backup.at(who.stage))
    return found is not None and found.life is Life.ALIVE


def _tend_shards(seen: Seen) -> list[Action]:
    """Return what to do about shards that are gone, and about slots that nobody stands by for."""
    dead = [who for who in _dead_shards(seen) if who.stage == 0]
    gone = [who for who in (*seen.serving, *seen.backups) if who is not None and who not in seen.actors]
    actions = [Action(Act.PROMOTE, who) for who in (*dead, *gone)]
    if not seen.num_backups or not seen.serving or not seen.has_begun:
        return actions
    up = [who for who, found in seen.actors.items() if found.life in (Life.STARTING, Life.ALIVE)]
    if _has_refuge(seen):
        actions += [Action(Act.HAND_OVER, who) for who in up if _may_go(seen, who)]
        up = [who for who in up if who not in seen.draining]
    standing = {who.index % seen.num_shards for who in up if who.role is Role.SHARD and who.at(0) not in seen.serving}
    lacking = [slot for slot in range(seen.num_shards) if slot not in standing]
    return actions + [Action(Act.STAND_BY, shard(slot)) for slot in lacking]


def _has_refuge(seen: Seen) -> bool:
    """Return whether there is a node to go to from those that are about to go: one that trains."""
    workers = seen.whose_death(Death.REPLACE)
    return any(found.life is Life.ALIVE and who not in seen.draining for who, found in workers.items())


def _may_go(seen: Seen, who: Address) -> bool:
    """Return whether a shard whose node is about to go may: nobody needs it, or its backup is ready elsewhere."""
    if who.role is not Role.SHARD or who.stage != 0 or who not in seen.draining:
        return False
    if who not in seen.serving:
        return True
    heir = seen.backups[seen.serving.index(who)] if seen.backups else None
    return heir is not None and heir not in seen.draining and who in seen.covered and _has_heir(seen, who)


def _tend_drained(seen: Seen) -> list[Action]:
    """Return what to do about coordinator and evaluator of a node that is about to go, once its shards are gone."""
    if not _has_refuge(seen) or {*seen.serving, *seen.backups} & seen.draining or not seen.has_begun:
        return []
    alive = {who for who in seen.draining if seen.actors[who].life is Life.ALIVE}
    renewed = [Action(Act.RENEW, who) for who in sorted(alive) if ROLES[who.role].death is Death.RENEW]
    is_led_from_there = COORDINATOR in alive and not seen.is_asking
    return renewed + ([Action(Act.SUCCEED, COORDINATOR)] if is_led_from_there else [])


def _succeed(seen: Seen) -> Plan | None:
    for address, found in seen.whose_death(Death.SUCCEED).items():
        if found.life is not Life.DEAD:
            continue
        cause = cause_of(address, found.cause)
        if not seen.retries.allows(cause, seen.now_s):
            return Plan(JobState.FAILED, _spent(seen, address, found))
        why = f"{address} died ({found.detail}): another one takes over{_soon(seen, cause)}"
        actions = () if seen.retries.waits(cause, seen.now_s) else (Action(Act.SUCCEED, address, cause),)
        return Plan(JobState.RECOVERING, why, actions)
    return None


def _launch(seen: Seen) -> Plan:
    if seen.stop is not None:
        return Plan(JobState.STOPPED, f"{seen.stop.reason}, before it started")
    if seen.shortage is not None:
        return Plan(JobState.PENDING, seen.shortage)
    return Plan(JobState.STARTING, f"starting {_actors(seen)}", (Action(Act.LAUNCH),))


def _actors(seen: Seen) -> str:
    """Return what a launch starts, in words."""
    kind = "worker" if seen.num_stages == 1 else "pipeline"
    workers = f"{seen.wanted_workers} {kind}{'s' if seen.wanted_workers != 1 else ''}"
    workers += f" of {seen.num_stages} stages" if seen.num_stages > 1 else ""
    shards = f"{seen.num_shards} shard{'s' if seen.num_shards != 1 else ''}"
    return f"{workers}{f' with {shards} in them' if seen.shards_in_workers else f', {shards}'} and the coordinator"


def _spares(seen: Seen) -> tuple[list[Address], list[Address]]:
    """Return who stands by, those that are up first, and those that stood by and are gone."""
    standing = {who: seen.actors[who].life for who in seen.spares if who in seen.actors}
    standing |= dict.fromkeys(standing.keys() & seen.draining, Life.DEAD)
    ready = [who for who, life in standing.items() if life is Life.SPARE]
    starting = [who for who, life in standing.items() if life is Life.STARTING]
    return sorted(ready) + sorted(starting), sorted(standing.keys() - {*ready, *starting})


def _tend(seen: Seen) -> Plan:
    workers = {who: found for who, found in seen.whose_death(Death.REPLACE).items() if who not in seen.spares}
    spares, lost_spares = _spares(seen)
    dead = [worker for worker, found in workers.items() if found.life is Life.DEAD]
    gone = [worker for worker, found in workers.items() if found.life is Life.GONE]
    if {who.at(0) for who in gone} & seen.members - seen.leaving:
        removals = (*_tend_shards(seen), *(Action(Act.REMOVE_DEAD, worker) for worker in dead))
        return Plan(seen.state, "the last step is done; workers say farewell", removals)
    up = [who for who, found in workers.items() if found.life in (Life.STARTING, Life.ALIVE, Life.FROZEN)]
    frozen = [who for who, found in workers.items() if found.life is Life.FROZEN]
    live = sorted({who.at(0) for who in up})
    drained = {who.at(0) for who in up if who in seen.draining}
    staying = [worker for worker in live if worker not in seen.leaving | drained]
    actions = [Action(Act.REMOVE_DEAD, worker) for worker in dead] + [Action(Act.DISMISS, worker) for worker in gone]
    broken = [
        who
        for who in up
        if who.at(0) in seen.leaving and any(who.at(stage) not in {*up, *gone} for stage in range(seen.num_stages))
    ]
    actions += [Action(Act.DISMISS, who) for who in broken]  # on its way out its pipeline has lost a stage
    lost = {name: found for name, found in seen.whose_death(Death.RENEW).items() if found.life is Life.DEAD}
    causes = {name: cause_of(name, found.cause) for name, found in lost.items()}
    due = {name: cause for name, cause in causes.items() if not seen.retries.waits(cause, seen.now_s)}
    actions += [Action(Act.RENEW, name, cause) for name, cause in due.items()]
    actions += [Action(Act.LEAVE_OUT, who) for who in frozen if who.at(0) in seen.members]
    actions = _tend_shards(seen) + actions + [Action(Act.DISMISS, who) for who in lost_spares]
    if seen.stop is not None:
        return Plan(JobState.STOPPING, seen.stop.reason, tuple(actions))
    missing = seen.wanted_workers - len(staying)
    away = len({who.at(0) for who in frozen} & {*staying})  # a spare does their work, too, until they wake
    called = spares[: max(0, missing + away)] if seen.has_begun else []
    actions += [Action(Act.CALL_IN, who) for who in called]
    missing -= len(called)
    if seen.shortage is None and _waiting(seen, dead) is None:
        stages = range(seen.num_stages)
        lacking = [who.at(stage) for who in staying for stage in stages if who.at(stage) not in up]
        actions += [Action(Act.ADD, who) for who in lacking] + [Action(Act.ADD)] * missing
        is_calm = seen.has_begun and not missing + away and not called and {*staying} <= seen.members | {*frozen}
        actions += [Action(Act.SPARE)] * (seen.num_spares - len(spares)) if is_calm else []
    if drained and _has_refuge(seen) and seen.has_begun:
        actions += [Action(Act.RETIRE, who) for who in sorted(drained & seen.members - seen.leaving - {*frozen})]
    actions += _tend_drained(seen)
    surplus = len(staying) - away - seen.wanted_workers
    if surplus > 0 and seen.has_begun and len(seen.members & {*staying}) > seen.wanted_workers:
        actions += [Action(Act.RETIRE, worker) for worker in staying[-surplus:] if worker in seen.members]
    return Plan(*_state(seen, dead, live, missing), tuple(actions))


def _waiting(seen: Seen, dead: list[Address]) -> Cause | None:
    """Return what it is that workers died of too often for another to be started now; those found dead just now are not
    counted yet.
    """
    new = {cause_of(who, seen.actors[who].cause) for who in dead}
    again = [cause for cause in (Cause.WORKER, Cause.MACHINE) if seen.retries.of(cause).in_a_row]
    is_soon = {cause: cause in new or seen.retries.waits(cause, seen.now_s) for cause in again}
    return next((cause for cause in again if seen.has_begun and is_soon[cause]), None)


def _state(seen: Seen, dead: list[Address], live: list[Address], missing: int) -> tuple[JobState, str]:
    starting = [worker for worker in live if worker not in seen.members | seen.leaving]
    successors = [found for found in seen.whose_death(Death.SUCCEED).values() if found.life is Life.STARTING]
    if (successors or seen.is_asking) and seen.has_begun:
        return JobState.RECOVERING, "another coordinator takes over, and asks what was decided"
    orphaned = [who for who in _dead_shards(seen) if who in seen.serving]
    if orphaned:
        detail = seen.actors[orphaned[0]].detail
        return JobState.RECOVERING, f"{orphaned[0].spoken} died ({detail}); its backup takes its place"
    waiting = _waiting(seen, dead)
    soon = "" if waiting is None else _soon(seen, waiting)
    if dead:
        why = f"{dead[0].spoken} died ({seen.actors[dead[0]].detail})"
        return JobState.RECOVERING, f"{why}; a new one takes its place{soon}"
    frozen = [who for who, found in sorted(seen.actors.items()) if found.life is Life.FROZEN]
    if frozen and seen.has_begun:
        detail = seen.actors[frozen[0]].detail
        return JobState.RECOVERING, f"{frozen[0].spoken}: {detail}; the others train on, and it may come back"
    if not seen.has_begun:
        up = sum(_is_up(seen, worker) for worker in live)
        return JobState.STARTING, f"{up} of {seen.wanted_workers} {_kind(seen)} are up"
    if len(seen.members) < seen.min_workers:
        waits = seen.shortage or "others are on their way"
        few = f"{len(seen.members)} of at least {seen.min_workers} {_kind(seen)}"
        return JobState.RESIZING, f"no step is made with {few}: {waits}"
    if missing > 0 and seen.shortage is not None:
        return JobState.RESIZING, f"{len(live)} of {seen.wanted_workers} {_kind(seen)}: {seen.shortage}"
    if seen.is_paused:
        return JobState.PAUSED, f"{seen.paused_by} paused it" if seen.paused_by else "the knob pause is set"
    if seen.draining and _has_refuge(seen):
        return JobState.RESIZING, "a node is about to go; what runs there moves to others"
    if missing or starting or seen.leaving & {*live}:
        if seen.state is JobState.RECOVERING:
            return JobState.RECOVERING, f"the replacement is on its way{soon}"
        return JobState.RESIZING, f"{len(seen.members)} {_kind(seen)} train, {seen.wanted_workers} are wanted"
    standing = sum(seen.actors[who].life is Life.SPARE for who in seen.spares if who in seen.actors)
    stands_by = f", {standing} stand{'s' * (standing == 1)} by" if standing else ""
    return JobState.RUNNING, f"{len(live)} {_kind(seen)} train{stands_by}"


def _kind(seen: Seen) -> str:
    return "workers" if seen.num_stages == 1 else "pipelines"


def _is_up(seen: Seen, replica: Address) -> bool:
    """Return whether all of a replica is."""
    found = [seen.actors.get(replica.at(stage)) for stage in range(seen.num_stages)]
    return all(one is not None and one.life is Life.ALIVE for one in found)

"""What a control plane does about a job on its books: a pure function from what is known of it to the next step.

A control plane may have been away, and so may the cluster: the books, the job's folder and the cluster each tell a
part, and whatever they tell, every job is launched once, followed to its end, or ended with a reason.

Silence is not death: a job whose cluster does not answer may train on. It has failed for a lost cluster only when
another cluster answers at that address, or the same one answers without its controller.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, NamedTuple

import msgspec

from raysync.control.states import JobState

GRACE_S = 30.0
"""A job whose cluster has not answered for so long is shown as recovering; nothing else follows from it."""
MISSING_S = 5.0
"""A controller is gone when its cluster has answered without it for so long: Ray may be finding it again."""
MAX_LAUNCHES = 5
"""A job whose cluster goes away again and again is not started for ever."""

OnClusterLoss = Literal["fail", "resume"]


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the decision depends on."""

    state: JobState
    """As it is in the books."""
    reason: str = ""
    """Why it is there."""
    launches: int = 0
    """How often it was started; counted before each start, so it may not have come to it."""
    is_admitted: bool = True
    """It is its turn to be started."""
    launched_on: str | None = None
    """The cluster it was last started on."""
    cluster: str | None
    """The cluster that answers now."""
    elsewhere: str | None = None
    """The address of its cluster, if that is not the one where a cluster is looked for."""
    unreachable_s: float = 0.0
    """For how long nothing has been heard of its cluster."""
    has_controller: bool = False
    missing_s: float = 0.0
    """For how long its cluster has answered without its controller."""
    end: JobState | None = None
    """The terminal state the job's folder tells of."""
    end_reason: str = ""
    stop: str | None = None
    """Why it was asked to end."""
    on_cluster_loss: OnClusterLoss = "fail"
    has_checkpoint: bool = False
    has_trained: bool = False
    """It has made a step."""


class Move(StrEnum):
    """What a control plane can do."""

    REST = "rest"
    """nothing: it has ended"""
    WAIT = "wait"
    """look again later"""
    LAUNCH = "launch"
    """start it"""
    RELAUNCH = "relaunch"
    """start it again from its folder"""
    FOLLOW = "follow"
    """take in what its controller tells"""
    FINISH = "finish"
    """take in the rest of its journal, and its end"""
    STOP = "stop"
    """enter it as stopped: nothing of it runs"""
    FAIL = "fail"
    """enter it as failed: nothing of it runs"""


class Verdict(NamedTuple):
    """The next move and why; while a job waits, the state it is shown in, if that changes."""

    move: Move
    reason: str
    state: JobState | None = None


def adopt(known: Known) -> Verdict:
    """Return what to do next about a job."""
    if known.state.is_terminal:
        return Verdict(Move.REST, "it has ended")
    if known.end is not None and not known.has_controller:
        return Verdict(Move.FINISH, known.end_reason)
    if known.has_controller:
        return Verdict(Move.FOLLOW, "its controller answers")
    if known.launches == 0:
        return _not_started(known)
    is_there = known.cluster is not None and (known.cluster == known.launched_on or known.elsewhere is None)
    return _after_loss(known) if is_there else _in_silence(known)


def _not_started(known: Known) -> Verdict:
    if known.stop is not None:
        return Verdict(Move.STOP, _stopped(known.stop, None))
    if known.cluster is None:
        return Verdict(Move.WAIT, NO_CLUSTER)
    if not known.is_admitted:
        return Verdict(Move.WAIT, "it waits for its turn")
    return Verdict(Move.LAUNCH, "it has not been started yet")


def _in_silence(known: Known) -> Verdict:
    """A job that has been started on a cluster nothing is heard of: whatever was asked of it waits, too."""
    told = "" if known.stop is None else "; it is told to stop as soon as it can be reached"
    if known.unreachable_s < GRACE_S:
        return Verdict(Move.WAIT, f"its Ray cluster does not answer now; it may train on{told}")
    where = f"its Ray cluster at {known.elsewhere}, which no service reaches," if known.elsewhere else "its Ray cluster"
    moved = f", or a service is started with --replaces-ray {known.elsewhere}" if known.elsewhere else ""
    reason = (
        f"{where} has not answered for more than {GRACE_S:.0f} s; it may train on, and is found again when that "
        f"cluster answers. It counts as lost only when another cluster answers there{moved}{told}"
    )
    return Verdict(Move.WAIT, reason, JobState.RECOVERING)


def _after_loss(known: Known) -> Verdict:
    moved = known.launched_on is not None and known.launched_on != known.cluster
    lost = "the Ray cluster it ran on is gone" if moved else "its controller is gone"
    if not moved and known.missing_s < MISSING_S and (_has_begun(known) or known.stop is not None):
        return Verdict(Move.WAIT, "its Ray cluster answers without its controller; looking again")
    if known.stop is not None:
        return Verdict(Move.STOP, _stopped(known.stop, "nothing of it runs any more"))
    if known.launches >= MAX_LAUNCHES:
        return Verdict(Move.FAIL, f"{lost}, and it has been started {known.launches} times; last: {known.reason}")
    if not _has_begun(known):
        return Verdict(Move.RELAUNCH, f"{lost}; it had not begun to train, so nothing is lost")
    if known.on_cluster_loss == "fail":
        return Verdict(Move.FAIL, f"{lost}; {_REMEDY}")
    if not known.has_checkpoint:
        return Verdict(Move.FAIL, f"{lost} and there is no checkpoint to resume from: set checkpoint.every_rounds")
    return Verdict(Move.RELAUNCH, f"{lost}: back to the last checkpoint")


class Leftover(StrEnum):
    """What to do about a controller that runs on a cluster."""

    LEAVE = "leave"
    """it belongs to a job of the books"""
    STOP = "stop"
    """ask it to end in good order"""
    CLEAR = "clear"
    """it has ended: nothing of it is needed any more"""


def leftover(state: JobState | None, end: JobState | None, stop: str | None) -> tuple[Leftover, str]:
    """Return what to do about a controller that runs, and why.

    Args:
        state: The job's state in the books; None if they do not have it.
        end: The terminal state the job itself has written down.
        stop: Why it was asked to end.

    Only a job that has ended by its own word is cleared away: the books may be wrong about what they could not see.

    """
    if state is None:
        return Leftover.LEAVE, "the books do not have it: it is not this service's"
    if not state.is_terminal:
        return Leftover.LEAVE, "it is looked after"
    if end is not None:
        return Leftover.CLEAR, "it has ended"
    if stop is not None:
        return Leftover.STOP, stop
    return Leftover.LEAVE, f"the books have it as {state.value}, and it trains on: end it with Ray's own tools"


NO_CLUSTER = "no Ray cluster answers; it starts when one does"
_REMEDY = "submit with on_cluster_loss: resume to go on from the last checkpoint by itself"


def _has_begun(known: Known) -> bool:
    return known.has_trained or known.state not in (JobState.PENDING, JobState.STARTING, JobState.RECOVERING)


def _stopped(reason: str, how: str | None) -> str:
    return f"{reason}; {how}" if how else f"{reason}, before it started"

"""What a control plane does about a job on its books: a pure function from what is known of it to the next step.

A control plane may have been away, and so may the cluster: the books, the job's folder and the cluster each tell a
part, and whatever they tell, every job is launched once, followed to its end, or ended with a reason.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, NamedTuple

import msgspec

from raysync.control.states import JobState

GRACE_S = 150.0
"""A cluster that has not answered for so long is taken for gone: longer than joining a busy one takes."""
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
    launched_on: str | None = None
    """The cluster it was last started on."""
    cluster: str | None
    """The cluster that answers now."""
    unreachable_s: float = 0.0
    """For how long none has answered."""
    has_controller: bool = False
    end: JobState | None = None
    """The terminal state the job's folder tells of."""
    end_reason: str = ""
    stop: str | None = None
    """Why somebody asked it to end."""
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
    if known.cluster is None:
        return _without_cluster(known)
    if known.has_controller:
        return Verdict(Move.FOLLOW, "its controller answers")
    if known.stop is not None:
        return Verdict(Move.STOP, _stopped(known.stop, "nothing of it runs any more" if known.launches else None))
    if known.launches == 0:
        return Verdict(Move.LAUNCH, "it has not been started yet")
    return _after_loss(known)


def _without_cluster(known: Known) -> Verdict:
    if known.stop is not None and known.launches == 0:
        return Verdict(Move.STOP, _stopped(known.stop, None))
    if known.launches == 0:
        return Verdict(Move.WAIT, "no Ray cluster answers; it starts when one does")
    if known.unreachable_s < GRACE_S:
        return Verdict(Move.WAIT, "its Ray cluster does not answer now; it may train on")
    if known.stop is not None:
        return Verdict(Move.STOP, _stopped(known.stop, "its Ray cluster is gone"))
    if known.on_cluster_loss == "resume" or not _has_begun(known):
        return Verdict(Move.WAIT, "its Ray cluster is gone; it goes on when one answers", JobState.RECOVERING)
    return Verdict(Move.FAIL, f"its Ray cluster has not answered for {known.unreachable_s:.0f} s; {_REMEDY}")


def _after_loss(known: Known) -> Verdict:
    moved = known.launched_on is not None and known.launched_on != known.cluster
    lost = "the Ray cluster it ran on is gone" if moved else "its controller is gone"
    if known.launches >= MAX_LAUNCHES:
        return Verdict(Move.FAIL, f"{lost}, and it has been started {known.launches} times; last: {known.reason}")
    if not _has_begun(known):
        return Verdict(Move.RELAUNCH, f"{lost}; it had not begun to train, so nothing is lost")
    if known.on_cluster_loss == "fail":
        return Verdict(Move.FAIL, f"{lost}; {_REMEDY}")
    if not known.has_checkpoint:
        return Verdict(Move.FAIL, f"{lost} and there is no checkpoint to resume from: set checkpoint.every_rounds")
    return Verdict(Move.RELAUNCH, f"{lost}: back to the last checkpoint")


_REMEDY = "submit with on_cluster_loss: resume to go on from the last checkpoint by itself"


def _has_begun(known: Known) -> bool:
    return known.has_trained or known.state not in (JobState.PENDING, JobState.STARTING, JobState.RECOVERING)


def _stopped(reason: str, how: str | None) -> str:
    return f"{reason}; {how}" if how else f"{reason}, before it started"

"""What a control plane does about a job on its books: the table."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from raysync.control.adopt import GRACE_S, MAX_LAUNCHES, MISSING_S, Known, Leftover, Move, adopt, leftover
from raysync.control.states import JobState

S = JobState
LAUNCHED: dict[str, Any] = {"launches": 1, "launched_on": "c1"}
MISSING: dict[str, Any] = {"missing_s": MISSING_S}


@pytest.mark.parametrize(
    ("fields", "move", "word"),
    [
        ({"state": S.PENDING}, Move.LAUNCH, "not been started"),
        ({"state": S.PENDING, "stop": "enough"}, Move.STOP, "enough, before it started"),
        ({"state": S.PENDING, "cluster": None}, Move.WAIT, "starts when one does"),
        ({"state": S.PENDING, "cluster": None, "stop": "enough"}, Move.STOP, "before it started"),
        ({"state": S.PENDING, "is_admitted": False}, Move.WAIT, "its turn"),
        ({"state": S.PENDING, "is_admitted": False, "stop": "enough"}, Move.STOP, "before it started"),
        # launched, and the service was away
        ({"state": S.PENDING, **LAUNCHED, "has_controller": True}, Move.FOLLOW, "answers"),
        ({"state": S.RUNNING, **LAUNCHED, "has_controller": True}, Move.FOLLOW, "answers"),
        ({"state": S.PAUSED, **LAUNCHED, "has_controller": True, "stop": "enough"}, Move.FOLLOW, "answers"),
        ({"state": S.RUNNING, **LAUNCHED, "end": S.SUCCEEDED, "end_reason": "done"}, Move.FINISH, "done"),
        ({"state": S.PENDING, "end": S.FAILED, "end_reason": "why"}, Move.FINISH, "why"),
        ({"state": S.RUNNING, **LAUNCHED, "has_controller": True, "end": S.SUCCEEDED}, Move.FOLLOW, "answers"),
        # its cluster does not answer
        ({"state": S.RUNNING, **LAUNCHED, "cluster": None, "unreachable_s": 5.0}, Move.WAIT, "does not answer now"),
        ({"state": S.RUNNING, **LAUNCHED, "cluster": None, "unreachable_s": GRACE_S}, Move.WAIT, "may train on"),
        ({"state": S.RUNNING, **LAUNCHED, "cluster": None, "unreachable_s": 1e9}, Move.WAIT, "found again"),
        (
            {"state": S.RUNNING, **LAUNCHED, "cluster": None, "unreachable_s": 1e9, "on_cluster_loss": "resume"},
            Move.WAIT,
            "found again",
        ),
        ({"state": S.STOPPING, **LAUNCHED, "cluster": None, "unreachable_s": 1e9, "stop": "x"}, Move.WAIT, "told to"),
        ({"state": S.STARTING, **LAUNCHED, "cluster": None, "unreachable_s": 1e9}, Move.WAIT, "found again"),
        # a cluster answers, but not where its own was
        ({"state": S.RUNNING, **LAUNCHED, "cluster": "c2", "elsewhere": "far:1"}, Move.WAIT, "does not answer now"),
        (
            {"state": S.RUNNING, **LAUNCHED, "cluster": "c2", "elsewhere": "far:1", "unreachable_s": 1e9},
            Move.WAIT,
            "far:1",
        ),
        ({"state": S.RUNNING, **LAUNCHED, "cluster": "c1", "elsewhere": "far:1", **MISSING}, Move.FAIL, "is gone"),
        # another cluster is there
        ({"state": S.RUNNING, **LAUNCHED, "cluster": "c2"}, Move.FAIL, "the Ray cluster it ran on is gone"),
        ({"state": S.RUNNING, **LAUNCHED}, Move.WAIT, "looking again"),
        ({"state": S.RUNNING, **LAUNCHED, "missing_s": MISSING_S - 0.1}, Move.WAIT, "looking again"),
        ({"state": S.RUNNING, **LAUNCHED, **MISSING}, Move.FAIL, "its controller is gone"),
        ({"state": S.RUNNING, **LAUNCHED, **MISSING, "stop": "x"}, Move.STOP, "nothing of it runs"),
        ({"state": S.PENDING, **LAUNCHED}, Move.RELAUNCH, "nothing is lost"),
        ({"state": S.PENDING, **LAUNCHED, "cluster": "c2"}, Move.RELAUNCH, "nothing is lost"),
        ({"state": S.STARTING, **LAUNCHED, "cluster": "c2"}, Move.RELAUNCH, "nothing is lost"),
        ({"state": S.RECOVERING, **LAUNCHED, "cluster": "c2"}, Move.RELAUNCH, "nothing is lost"),
        ({"state": S.RECOVERING, **LAUNCHED, "cluster": "c2", "has_trained": True}, Move.FAIL, "is gone"),
        ({"state": S.RUNNING, **LAUNCHED, "cluster": "c2", "stop": "x"}, Move.STOP, "nothing of it runs"),
        (
            {"state": S.RUNNING, **LAUNCHED, "cluster": "c2", "on_cluster_loss": "resume", "has_checkpoint": True},
            Move.RELAUNCH,
            "back to the last checkpoint",
        ),
        (
            {"state": S.RUNNING, **LAUNCHED, "cluster": "c2", "on_cluster_loss": "resume"},
            Move.FAIL,
            "checkpoint.every_rounds",
        ),
        (
            {"state": S.RUNNING, "launches": MAX_LAUNCHES, "launched_on": "c1", "cluster": "c2",
             "on_cluster_loss": "resume", "has_checkpoint": True},
            Move.FAIL,
            f"started {MAX_LAUNCHES} times",
        ),
    ],
)  # fmt: skip
def test_adopt_table(fields: dict[str, Any], move: Move, word: str) -> None:
    verdict = adopt(Known(**{"cluster": "c1", **fields}))
    assert verdict.move is move, verdict
    assert word in verdict.reason


def test_no_job_is_forgotten_or_run_twice_whatever_is_known() -> None:
    """Over all combinations: an end is final, a job with a controller is never started, none is left without a move."""
    flags = itertools.product(
        S, (0, 1, MAX_LAUNCHES), (None, "c1", "c2"), (0.0, 1e4), (False, True), (None, S.SUCCEEDED), (None, "x"),
        ("fail", "resume"), (False, True),
    )  # fmt: skip
    for state, launches, cluster, away_s, controller, end, stop, policy, checkpoint in flags:
        known = Known(
            state=state,
            launches=launches,
            launched_on="c1" if launches else None,
            cluster=cluster,
            unreachable_s=away_s,
            has_controller=controller and cluster is not None,
            end=end,
            stop=stop,
            on_cluster_loss=policy,  # type: ignore[arg-type]
            has_checkpoint=checkpoint,
        )
        move, reason, _ = adopt(known)
        assert reason or move is Move.FINISH
        if state.is_terminal:
            assert move is Move.REST
        if known.has_controller:
            assert move in (Move.FOLLOW, Move.REST), known
        if move is Move.LAUNCH:
            assert launches == 0
        if cluster is None and launches and end is None:
            assert move in (Move.WAIT, Move.REST), "silence is not death"
        if move is Move.RELAUNCH:
            assert 0 < launches < MAX_LAUNCHES
        if move is Move.REST:
            assert state.is_terminal


@pytest.mark.parametrize(
    ("state", "end", "stop", "move"),
    [
        (None, None, None, Leftover.LEAVE),
        (None, S.SUCCEEDED, None, Leftover.LEAVE),
        (S.RUNNING, None, "x", Leftover.LEAVE),
        (S.FAILED, None, None, Leftover.LEAVE),
        (S.STOPPED, None, "x", Leftover.STOP),
        (S.FAILED, S.FAILED, None, Leftover.CLEAR),
        (S.STOPPED, S.SUCCEEDED, "x", Leftover.CLEAR),
    ],
)
def test_only_what_has_ended_by_its_own_word_is_cleared_away(
    state: JobState | None, end: JobState | None, stop: str | None, move: Leftover
) -> None:
    found, reason = leftover(state, end, stop)
    assert found is move
    assert reason


def test_a_job_in_long_silence_is_shown_as_recovering() -> None:
    known = Known(state=S.RUNNING, **LAUNCHED, cluster=None, unreachable_s=GRACE_S)
    assert adopt(known).state is S.RECOVERING

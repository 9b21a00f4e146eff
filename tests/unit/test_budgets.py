"""How often what has failed is tried again, and how soon: a line for every cause."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from raysync.address import COORDINATOR, EVALUATOR, Address, shard, stage, worker
from raysync.control.budgets import BUDGETS, Cause, Retries, cause_of
from raysync.control.reconcile import Act, ActorSeen, Life, Plan, Seen, reconcile
from raysync.control.states import JobState

ALIVE = ActorSeen(Life.ALIVE)


def calm(who: Address | None = None, found: ActorSeen | None = None, **changes: Any) -> Seen:
    """Return what is seen of a job of two workers that trains, but for one actor; None: it has been cleared away."""
    actors = {COORDINATOR: ALIVE, shard(0): ALIVE, worker(0): ALIVE, worker(1): ALIVE, EVALUATOR: ALIVE}
    actors = {name: seen for name, seen in {**actors, **({} if who is None else {who: found})}.items() if seen}
    facts: dict[str, Any] = {
        "state": JobState.RUNNING,
        "members": frozenset({worker(0), worker(1)}),
        "wanted_workers": 2,
        "has_begun": True,
        "has_checkpoint": True,
        "serving": (shard(0),),
        **changes,
    }
    return Seen(actors=actors, **facts)


def counted(retries: Retries, plan: Plan, seen: Seen, now_s: float) -> Retries:
    """Return what a controller counts of a plan it carries out."""
    removed = [action.who for action in plan.actions if action.act is Act.REMOVE_DEAD and action.who is not None]
    dead = {who: (cause_of(who, seen.actors[who].cause), seen.actors[who].detail) for who in removed}
    retries = retries.after_deaths(dead, removed, now_s)
    for cause in [action.cause for action in plan.actions if action.cause is not None]:
        retries = retries.after_failure(cause, plan.reason, now_s)
    return retries


def story(who: Address, found: ActorSeen, times: int, **changes: Any) -> tuple[Plan, list[float]]:
    """Let an actor end again and again, as soon as it is back; return the last plan, and how long each retry waited."""
    retries, now_s, waits = Retries(), 1000.0, list[float]()
    for _ in range(times):
        since_s = now_s
        seen_now: ActorSeen | None = found
        while True:
            seen = calm(who, seen_now, retries=retries, now_s=now_s, **changes)
            plan = reconcile(seen)
            retries = counted(retries, plan, seen, now_s)
            if plan.state is JobState.FAILED:
                return plan, waits
            acts = {action.act for action in plan.actions}
            if acts & AGAIN:
                break
            seen_now = None if Act.REMOVE_DEAD in acts else seen_now
            now_s += 0.5
            assert now_s < 1e4, "it is never tried again"
        waits.append(now_s - since_s)
    return plan, waits


AGAIN = {Act.ADD, Act.RECOVER, Act.ROLL_BACK, Act.SUCCEED, Act.RENEW}
DEAD = ActorSeen(Life.DEAD, "killed")
NAN = ActorSeen(Life.FAILED, "worker 1, step 7: the loss is NaN", Cause.DIVERGENCE)


@pytest.mark.parametrize(
    ("who", "found", "changes", "waits", "words"),
    [
        (worker(1), DEAD, {}, [0.0, 1.0, 2.0, 4.0, 8.0], "workers died 6 times without a step between them; last: killed; look"),
        (shard(0), DEAD, {}, [0.0, 1.0, 2.0], "shard/0 died (killed) after it took the job back 3 times without a step"),
        (COORDINATOR, DEAD, {}, [0.0, 1.0, 2.0], "after it was started again 3 times without a step between them; look at"),
        (EVALUATOR, DEAD, {}, [0.0, 1.0, 2.0, 4.0, 8.0], "after it was started again 5 times; set eval.on: workers"),
        (worker(1), NAN, {"rolls_back": True}, [0.0, 0.0, 0.0], "NaN\nthe job went back to a checkpoint 3 times"),
        (worker(1), NAN, {}, [], "worker/1: worker 1, step 7: the loss is NaN"),
    ],
)  # fmt: skip
def test_what_fails_again_and_again_waits_longer_and_longer_and_then_ends_the_job(
    who: Address, found: ActorSeen, changes: dict[str, Any], waits: list[float], words: str
) -> None:
    plan, waited = story(who, found, 50, **changes)
    assert plan.state is JobState.FAILED
    assert words in plan.reason
    assert len(waited) == len(waits)
    for took, meant in zip(waited, waits, strict=True):
        assert meant <= took <= meant + 0.5


@pytest.mark.parametrize("who", [worker(1), shard(0), COORDINATOR, EVALUATOR])
def test_machines_that_are_taken_away_cost_nothing_of_what_errors_may(who: Address) -> None:
    lost = ActorSeen(Life.DEAD, "its node has died", Cause.MACHINE)
    plan, waited = story(who, lost, 12)
    assert plan.state is not JobState.FAILED
    assert waited[0] == 0.0
    assert max(waited) <= BUDGETS[Cause.MACHINE].most_s + 0.5
    retries = Retries()
    for number in range(12):
        retries = retries.after_failure(Cause.MACHINE, "lost", float(number))
    for cause in {*Cause} - {Cause.MACHINE}:
        assert retries.allows(cause, 12.0)
        assert not retries.waits(cause, 12.0)


def test_a_step_begins_the_count_anew_where_it_shows_that_all_is_well() -> None:
    retries = Retries()
    for cause in Cause:
        for _ in range(2):
            retries = retries.after_failure(cause, "why", 5.0)
    after = retries.after_step()
    left = {cause for cause in Cause if after.of(cause).in_a_row}
    assert left == {Cause.EVALUATOR, Cause.DIVERGENCE}, (
        "the model may diverge again there; nobody knows of the evaluator"
    )
    assert after.after_step() is after


def test_an_evaluator_that_died_long_ago_is_forgiven() -> None:
    retries = Retries()
    for number in range(5):
        retries = retries.after_failure(Cause.EVALUATOR, "killed", float(number))
    assert not retries.allows(Cause.EVALUATOR, 100.0)
    assert retries.allows(Cause.EVALUATOR, 4000.0)
    assert retries.after_failure(Cause.EVALUATOR, "killed", 4000.0).of(Cause.EVALUATOR).in_a_row == 1


def test_deaths_of_two_causes_are_counted_apart() -> None:
    dead = {worker(0): (Cause.MACHINE, "lost"), worker(1): (Cause.MACHINE, "lost"), worker(2): (Cause.WORKER, "killed")}
    retries = Retries().after_deaths(dead, [*map(worker, range(3))], 1.0)
    assert (retries.of(Cause.MACHINE).in_a_row, retries.of(Cause.WORKER).in_a_row) == (1, 1)


def test_nothing_waits_by_a_clock_that_went_back() -> None:
    retries = Retries().after_failure(Cause.SHARD, "killed", 1000.0)
    assert retries.waits(Cause.SHARD, 1000.5)
    assert not retries.waits(Cause.SHARD, 10.0)


def test_every_cause_has_a_budget_and_every_role_a_cause() -> None:
    assert BUDGETS.keys() == {*Cause}
    assert [cause_of(who) for who in (worker(0), stage(1, 0), shard(0), COORDINATOR, EVALUATOR)] == [
        Cause.WORKER,
        Cause.WORKER,
        Cause.SHARD,
        Cause.COORDINATOR,
        Cause.EVALUATOR,
    ]
    assert cause_of(worker(0), Cause.MACHINE) is Cause.MACHINE


def test_going_back_needs_something_to_go_back_to() -> None:
    plan = reconcile(calm(worker(1), NAN, rolls_back=True, has_checkpoint=False))
    assert plan.state is JobState.FAILED
    assert "there is no checkpoint to go back to yet" in plan.reason
    both = calm(worker(1), NAN, rolls_back=True)
    actors = {**both.actors, worker(0): ActorSeen(Life.FAILED, "ValueError: no")}
    assert reconcile(msgspec.structs.replace(both, actors=actors)) == (JobState.FAILED, "worker/0: ValueError: no", ())

"""What the controller decides: a story per line, no cluster needed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysync.control.placing import Shortage, place, seat_servers
from raysync.control.reconcile import Act, ActorSeen, Life, Seen, StopAsked, reconcile
from raysync.control.states import JobState

ALIVE, DEAD, GONE = ActorSeen(Life.ALIVE), ActorSeen(Life.DEAD, "killed"), ActorSeen(Life.GONE)
SERVERS = {"coordinator": ALIVE, "shard/0": ALIVE}


def seen(**changes: Any) -> Seen:
    facts = {
        "state": JobState.RUNNING,
        "servers": SERVERS,
        "workers": {0: ALIVE, 1: ALIVE},
        "members": frozenset({0, 1}),
        "wanted_workers": 2,
        "has_begun": True,
    }
    return Seen(**{**facts, **changes})


def acts(plan: Any) -> list[tuple[str, int | None]]:
    return [(action.act.value, action.worker) for action in plan.actions]


def test_a_job_that_fits_is_launched_and_one_that_does_not_waits() -> None:
    pending = {"state": JobState.PENDING, "servers": {}, "workers": {}, "has_begun": False}
    assert acts(reconcile(seen(**pending))) == [("launch", None)]
    plan = reconcile(seen(**pending, shortage="2 CPUs are missing"))
    assert plan == (JobState.PENDING, "2 CPUs are missing", ())
    assert reconcile(seen(**pending, stop=StopAsked("enough", False))).state is JobState.STOPPED


def test_all_well_needs_nothing() -> None:
    assert reconcile(seen()) == (JobState.RUNNING, "2 workers train", ())
    assert reconcile(seen(is_paused=True)).state is JobState.PAUSED


def test_a_dead_worker_is_buried_and_replaced() -> None:
    plan = reconcile(seen(workers={0: ALIVE, 1: DEAD}))
    assert acts(plan) == [("bury", 1), ("add", None)]
    assert plan.state is JobState.RECOVERING
    assert "worker 1 died (killed)" in plan.reason


def test_workers_that_keep_dying_end_the_job() -> None:
    plan = reconcile(seen(workers={0: ALIVE, 1: DEAD}, deaths_in_a_row=6))
    assert plan.state is JobState.FAILED
    assert "6 workers died" in plan.reason


def test_growing_and_shrinking() -> None:
    assert acts(reconcile(seen(wanted_workers=4))) == [("add", None)] * 2
    assert acts(reconcile(seen(wanted_workers=1))) == [("retire", 1)]
    leaving = seen(wanted_workers=1, leaving=frozenset({1}))
    assert reconcile(leaving).actions == ()
    assert reconcile(leaving).state is JobState.RESIZING
    left = seen(wanted_workers=1, leaving=frozenset({1}), workers={0: ALIVE, 1: GONE}, members=frozenset({0}))
    assert acts(reconcile(left)) == [("dismiss", 1)]


def test_nobody_is_retired_before_it_has_joined() -> None:
    plan = reconcile(seen(workers={0: ALIVE, 1: ALIVE, 2: ALIVE}, wanted_workers=2))
    assert plan.actions == ()
    assert plan.state is JobState.RESIZING


def test_without_room_it_trains_on_with_fewer_and_says_so() -> None:
    plan = reconcile(seen(wanted_workers=3, shortage="no CPU is free"))
    assert plan == (JobState.RESIZING, "2 of 3 workers: no CPU is free", ())


def test_the_first_to_say_farewell_is_not_replaced() -> None:
    plan = reconcile(seen(workers={0: GONE, 1: ALIVE}))
    assert plan == (JobState.RUNNING, "the last step is done; workers say farewell", ())


def test_one_that_dies_while_the_others_say_farewell_is_buried() -> None:
    plan = reconcile(seen(workers={0: GONE, 1: DEAD}))
    assert acts(plan) == [("bury", 1)]


def test_one_that_left_long_ago_is_dismissed_whoever_asked_it_to() -> None:
    plan = reconcile(seen(workers={0: ALIVE, 1: ALIVE, 2: GONE}))
    assert acts(plan) == [("dismiss", 2)]


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_dead_server(has_checkpoint: bool) -> None:
    plan = reconcile(seen(servers={"coordinator": ALIVE, "shard/0": DEAD}, has_checkpoint=has_checkpoint))
    assert plan.state is (JobState.RECOVERING if has_checkpoint else JobState.FAILED)
    assert "shard/0 died (killed)" in plan.reason


def test_raising_code_is_not_run_again() -> None:
    plan = reconcile(seen(workers={0: ALIVE, 1: ActorSeen(Life.FAILED, "ValueError: no")}))
    assert plan == (JobState.FAILED, "worker/1: ValueError: no", ())


def test_stopping_in_good_order_and_by_force() -> None:
    assert reconcile(seen(stop=StopAsked("enough", False))).state is JobState.STOPPING
    assert reconcile(seen(stop=StopAsked("enough", True))).state is JobState.STOPPED
    assert reconcile(seen(stop=StopAsked("enough", False), has_finished=True)) == (JobState.STOPPED, "enough", ())
    assert reconcile(seen(has_finished=True)).state is JobState.SUCCEEDED


LIVES = st.sampled_from(list(Life)).map(lambda life: ActorSeen(life, "why"))


@given(
    st.builds(
        Seen,
        state=st.sampled_from(list(JobState)),
        servers=st.dictionaries(st.sampled_from(["coordinator", "shard/0"]), LIVES),
        workers=st.dictionaries(st.integers(0, 5), LIVES),
        members=st.frozensets(st.integers(0, 5)),
        leaving=st.frozensets(st.integers(0, 5)),
        wanted_workers=st.integers(1, 5),
        shortage=st.none() | st.just("no room"),
        has_begun=st.booleans(),
        has_finished=st.booleans(),
        is_paused=st.booleans(),
        stop=st.none() | st.builds(StopAsked, st.just("enough"), st.booleans()),
        has_checkpoint=st.booleans(),
        deaths_in_a_row=st.integers(0, 9),
        recoveries_in_a_row=st.integers(0, 5),
    )
)
def test_whatever_is_seen_there_is_a_state_a_reason_and_only_sensible_acts(any_seen: Seen) -> None:
    plan = reconcile(any_seen)
    assert plan.reason
    if any_seen.state.is_terminal:
        assert (plan.state, plan.actions) == (any_seen.state, ())
    if plan.state.is_terminal:
        assert plan.actions == ()
    for action in plan.actions:
        assert (action.worker is None) == (action.act in (Act.ADD, Act.LAUNCH, Act.RECOVER))
        if action.act is Act.RETIRE:
            assert any_seen.workers[action.worker].life in (Life.ALIVE, Life.STARTING)
        if action.act is Act.BURY:
            assert any_seen.workers[action.worker].life is Life.DEAD
    added = sum(action.act is Act.ADD for action in plan.actions)
    retired = sum(action.act is Act.RETIRE for action in plan.actions)
    assert not (added and retired)
    assert not (added and any_seen.shortage)


def test_placing_spreads_packs_and_says_what_is_missing() -> None:
    free = {"a": {"CPU": 4.0}, "b": {"CPU": 2.0}, "c": {"CPU": 0.5}}
    assert place(4, {"CPU": 1.0}, free, "spread") == ["a", "b", "a", "b"]
    assert place(4, {"CPU": 1.0}, free, "pack") == ["a", "a", "a", "a"]
    assert place(1, {"CPU": 1.0}, free, "spread", {"a": 2, "b": 1}) == ["b"]
    assert place(1, {"CPU": 1.0}, free, "pack", {"a": 0, "b": 1}) == ["b"]
    assert place(3, {"CPU": 2.0, "GPU": 1.0}, free, "spread") == Shortage(
        "3 workers need 2 CPU, 1 GPU each; 0 fit now (6.5 CPU, 0 GPU free on 3 nodes)"
    )


@given(
    count=st.integers(1, 12),
    need=st.sampled_from([0.25, 0.5, 1.0, 2.0]),
    free=st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(0, 8), max_size=5),
    strategy=st.sampled_from(["spread", "pack"]),
)
def test_placing_never_overfills_and_gives_up_only_when_it_must(
    count: int, need: float, free: dict[str, int], strategy: Any
) -> None:
    placed = place(count, {"CPU": need}, {node: {"CPU": float(cpus)} for node, cpus in free.items()}, strategy)
    room = {node: int(cpus / need) for node, cpus in free.items()}
    if isinstance(placed, Shortage):
        assert sum(room.values()) < count
    else:
        assert len(placed) == count
        assert all(placed.count(node) <= room[node] for node in placed)


def test_shards_sit_beside_or_inside_the_workers_in_turn() -> None:
    nodes = ["a", "b", "a"]
    beside = seat_servers(nodes, 4, "actors")
    assert beside == ("a", {0: "a", 1: "b", 2: "a", 3: "a"}, [(), (), ()])
    inside = seat_servers(nodes, 2, "workers")
    assert inside == ("a", {}, [(0,), (1,), ()])
    assert seat_servers(["b"], 3, "workers").guests == [(0, 1, 2)]

"""What the controller decides: a story per line, no cluster needed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysync.address import COORDINATOR, EVALUATOR, Address, shard, stage, worker
from raysync.control.budgets import Cause, Retries
from raysync.control.incidents import Incidents, with_deaths
from raysync.control.placing import Shortage, Wanted, demand_of, place, place_all, seat_servers
from raysync.control.reconcile import Act, Action, ActorSeen, Life, Seen, StopAsked, reconcile
from raysync.control.states import JobState
from raysync.spec import Scale

ALIVE, DEAD, GONE = ActorSeen(Life.ALIVE), ActorSeen(Life.DEAD, "killed"), ActorSeen(Life.GONE)
SERVERS = {COORDINATOR: ALIVE, shard(0): ALIVE}


def seen(**changes: Any) -> Seen:
    """Return what is seen of a job, its workers by number."""
    facts: dict[str, Any] = {
        "state": JobState.RUNNING,
        "servers": SERVERS,
        "workers": {0: ALIVE, 1: ALIVE},
        "members": {0, 1},
        "leaving": set(),
        "wanted_workers": 2,
        "has_begun": True,
        **changes,
    }
    actors = {**facts.pop("servers"), **{worker(index): found for index, found in facts.pop("workers").items()}}
    sets = {name: frozenset(map(worker, facts.pop(name))) for name in ("members", "leaving")}
    return Seen(**facts, **sets, actors=actors)


def acts(plan: Any) -> list[tuple[str, int | None]]:
    return [(action.act.value, None if action.who is None else action.who.index) for action in plan.actions]


def spent(cause: Cause, times: int, last: str = "") -> Retries:
    return Retries({cause: Incidents(in_a_row=times, last=last)})


def test_a_job_that_fits_is_launched_and_one_that_does_not_waits() -> None:
    pending = {"state": JobState.PENDING, "servers": {}, "workers": {}, "has_begun": False}
    assert acts(reconcile(seen(**pending))) == [("launch", None)]
    plan = reconcile(seen(**pending, shortage="2 CPUs are missing"))
    assert plan == (JobState.PENDING, "2 CPUs are missing", ())
    assert reconcile(seen(**pending, stop=StopAsked("enough", False))).state is JobState.STOPPED


def test_all_well_needs_nothing() -> None:
    assert reconcile(seen()) == (JobState.RUNNING, "2 workers train", ())
    assert reconcile(seen(is_paused=True)).state is JobState.PAUSED
    assert reconcile(seen(is_paused=True, paused_by="anna")).reason == "anna paused it"
    assert reconcile(seen(is_paused=True)).reason == "the knob pause is set"


def test_a_dead_worker_is_buried_and_replaced() -> None:
    plan = reconcile(seen(workers={0: ALIVE, 1: DEAD}))
    assert acts(plan) == [("remove_dead", 1), ("add", None)]
    assert plan.state is JobState.RECOVERING
    assert "worker 1 died (killed)" in plan.reason


def test_an_evaluator_that_died_is_started_again_and_one_that_raised_ends_the_job() -> None:
    plan = reconcile(seen(servers={**SERVERS, EVALUATOR: DEAD}))
    assert (plan.state, acts(plan)) == (JobState.RUNNING, [("renew", 0)])
    assert plan.actions[0].who == EVALUATOR
    assert acts(reconcile(seen(servers={**SERVERS, EVALUATOR: ALIVE}))) == []
    plan = reconcile(seen(servers={**SERVERS, EVALUATOR: ActorSeen(Life.FAILED, "eval_data() raised")}))
    assert (plan.state, plan.reason) == (JobState.FAILED, "evaluator: eval_data() raised")


def test_workers_that_keep_dying_end_the_job() -> None:
    plan = reconcile(seen(workers={0: ALIVE, 1: DEAD}, retries=spent(Cause.WORKER, 6, "out of memory"), now_s=99.0))
    assert plan.state is JobState.FAILED
    assert plan.reason.startswith("workers died 6 times without a step between them; last: out of memory; look at its")
    assert reconcile(seen(retries=spent(Cause.WORKER, 5), now_s=99.0)).state is JobState.RUNNING
    assert reconcile(seen(retries=spent(Cause.MACHINE, 500), now_s=99.0)).state is JobState.RUNNING


NODE_OF_EIGHT = dict.fromkeys(range(8), "node lost")


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        ([(0.0, NODE_OF_EIGHT, 9)], 1),  # a node with eight workers, seen in one look
        ([(0.1 * i, {i: "node lost"}, 9) for i in range(8)], 1),  # the same, noticed one by one
        ([(0.0, {0: "x"}, 2), (59.0, {1: "x"}, 3)], 1),  # both were there when it began
        ([(0.0, {0: "x"}, 2), (61.0, {1: "x"}, 3)], 2),  # too late to have the same cause
        ([(float(i), {i: "x"}, i + 1) for i in range(7)], 7),  # each replacement dies: again and again
        ([(0.0, {0: "x"}, 3), (1.0, {1: "x", 3: "x"}, 4)], 2),  # a replacement among them
        ([(0.0, {}, 2)], 0),
    ],
)
def test_deaths_with_one_cause_are_one_incident(looks: list[tuple[float, dict[int, str], int]], expected: int) -> None:
    incidents = Incidents()
    for now_s, dead, started in looks:
        named = {worker(index): why for index, why in dead.items()}
        incidents = with_deaths(incidents, named, [*map(worker, range(started))], now_s)
    assert incidents.in_a_row == expected


def test_one_lost_node_with_many_workers_does_not_end_the_job() -> None:
    """The whole story: eight of nine workers die at once, are buried, and the job goes on."""
    workers = dict.fromkeys(range(8), DEAD) | {8: ALIVE}
    facts = {"workers": workers, "members": frozenset(range(9)), "wanted_workers": 9}
    plan = reconcile(seen(**facts))
    assert acts(plan) == [("remove_dead", index) for index in range(8)] + [("add", None)] * 8
    dead = {worker(i): (Cause.WORKER, "node lost") for i in range(8)}
    retries = Retries().after_deaths(dead, [*map(worker, range(9))], 12.0)
    plan = reconcile(seen(workers={8: ALIVE}, members={8}, wanted_workers=9, retries=retries, now_s=12.3))
    assert plan.actions == (), "seven others may have died with the first, and been noticed later"
    plan = reconcile(seen(workers={8: ALIVE}, members={8}, wanted_workers=9, retries=retries, now_s=13.5))
    assert acts(plan) == [("add", None)] * 8
    assert plan.state is JobState.RESIZING


SPARE, STARTING, FROZEN = ActorSeen(Life.SPARE), ActorSeen(Life.STARTING), ActorSeen(Life.FROZEN, "silent")


@pytest.mark.parametrize(
    ("workers", "changes", "expected"),
    [
        ({0: ALIVE, 1: ALIVE}, {}, [("spare", None)]),
        ({0: ALIVE, 1: ALIVE, 2: STARTING}, {}, []),
        ({0: ALIVE, 1: ALIVE, 2: SPARE}, {}, []),
        ({0: ALIVE, 1: DEAD, 2: SPARE}, {}, [("remove_dead", 1), ("call_in", 2)]),
        ({0: ALIVE, 1: DEAD, 2: STARTING}, {}, [("remove_dead", 1), ("call_in", 2)]),  # it is ahead of any other
        ({0: DEAD, 1: DEAD, 2: SPARE}, {}, [("remove_dead", 0), ("remove_dead", 1), ("call_in", 2), ("add", None)]),
        ({0: ALIVE, 1: DEAD, 2: SPARE}, {"shortage": "no CPU"}, [("remove_dead", 1), ("call_in", 2)]),
        ({0: ALIVE, 1: FROZEN, 2: SPARE}, {}, [("leave_out", 1), ("call_in", 2)]),
        ({0: ALIVE, 1: ALIVE, 2: DEAD}, {}, [("dismiss", 2), ("spare", None)]),  # no worker has died
        ({0: ALIVE, 1: ALIVE, 2: SPARE}, {"wanted_workers": 3}, [("call_in", 2)]),
        ({0: ALIVE, 1: ALIVE, 2: SPARE}, {"wanted_workers": 1}, [("retire", 1)]),
        ({0: ALIVE, 1: ALIVE}, {"shortage": "no CPU"}, []),
        ({0: ALIVE, 1: ALIVE, 2: SPARE}, {"stop": StopAsked("enough", False)}, []),
    ],
)
def test_a_spare_takes_the_place_of_a_worker_and_another_stands_by(
    workers: dict[int, ActorSeen], changes: dict[str, Any], expected: list[tuple[str, int | None]]
) -> None:
    spares = frozenset({worker(2)} & {worker(index) for index in workers})
    assert acts(reconcile(seen(workers=workers, spares=spares, num_spares=1, **changes))) == expected


def test_whoever_wakes_and_finds_a_spare_in_its_place_is_one_too_many() -> None:
    called = {"workers": {0: ALIVE, 1: FROZEN, 2: ALIVE}, "num_spares": 1}
    assert acts(reconcile(seen(**called, members={0, 2}))) == [("spare", None)], "it may sleep on"
    woken = {"workers": {0: ALIVE, 1: ALIVE, 2: ALIVE}, "num_spares": 1}
    assert acts(reconcile(seen(**woken, members={0, 2}))) == [], "it has not joined again"
    assert acts(reconcile(seen(**woken, members={0, 1, 2}))) == [("retire", 2)]


TWO_NODES = {COORDINATOR: ALIVE, shard(0): ALIVE, shard(1): ALIVE, shard(2): ALIVE, shard(3): ALIVE}
SERVED: dict[str, Any] = {"serving": (shard(0), shard(1)), "num_shards": 2, "num_backups": 1}
GOING = frozenset({COORDINATOR, shard(0), shard(3), worker(0)})
"""What is on the node that is about to go: a shard, the other one's backup, the coordinator, a worker."""


def test_what_is_on_a_node_that_is_about_to_go_moves_in_good_order() -> None:
    facts = {"servers": TWO_NODES, "draining": GOING, **SERVED}
    first = reconcile(seen(**facts, backups=(shard(2), shard(3))))
    assert acts(first) == [("hand_over", 3), ("stand_by", 1), ("add", None), ("retire", 0)], (
        "its backup may lack something"
    )
    assert (first.state, "about to go" in first.reason) == (JobState.RESIZING, True)
    newer = {**TWO_NODES, shard(5): ALIVE}
    facts |= {
        "servers": newer,
        "covered": frozenset({shard(0)}),
        "leaving": {0},
        "workers": {0: ALIVE, 1: ALIVE, 2: ALIVE},
    }
    second = reconcile(seen(**facts, backups=(shard(2), shard(5)), members={0, 1}))
    assert acts(second) == [("hand_over", 0), ("hand_over", 3)], "one is promoted, the other is ended"
    facts |= {"serving": (shard(2), shard(1)), "servers": {**newer, shard(4): ALIVE}}
    third = reconcile(seen(**facts, backups=(shard(4), shard(5)), members={1, 2}))
    assert acts(third)[-1] == ("succeed", 0), "once it is not needed to tell of the others"


def test_without_another_node_that_trains_nothing_moves() -> None:
    going = GOING | {worker(1)}
    plan = reconcile(
        seen(servers=TWO_NODES, draining=going, **SERVED, backups=(shard(2), shard(3)), shortage="no room")
    )
    assert acts(plan) == []


def test_with_fewer_workers_than_it_is_to_train_with_a_job_waits_and_says_so() -> None:
    few = {"workers": {0: ALIVE}, "members": {0}, "min_workers": 2}
    plan = reconcile(seen(**few, shortage="no CPU is free"))
    assert plan == (JobState.RESIZING, "no step is made with 1 of at least 2 workers: no CPU is free", ())


def test_growing_and_shrinking() -> None:
    assert acts(reconcile(seen(wanted_workers=4))) == [("add", None)] * 2
    assert acts(reconcile(seen(wanted_workers=1))) == [("retire", 1)]
    leaving = seen(wanted_workers=1, leaving={1})
    assert reconcile(leaving).actions == ()
    assert reconcile(leaving).state is JobState.RESIZING
    left = seen(wanted_workers=1, leaving={1}, workers={0: ALIVE, 1: GONE}, members={0})
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
    assert acts(plan) == [("remove_dead", 1)]


def test_one_that_left_long_ago_is_dismissed_whoever_asked_it_to() -> None:
    plan = reconcile(seen(workers={0: ALIVE, 1: ALIVE, 2: GONE}))
    assert acts(plan) == [("dismiss", 2)]


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_dead_shard_without_a_backup_takes_the_job_back(has_checkpoint: bool) -> None:
    dead = {COORDINATOR: ALIVE, shard(0): DEAD}
    plan = reconcile(seen(servers=dead, has_checkpoint=has_checkpoint, serving=(shard(0),)))
    assert plan.state is (JobState.RECOVERING if has_checkpoint else JobState.FAILED)
    assert "shard/0 died (killed)" in plan.reason


def test_a_dead_shard_with_a_backup_costs_nothing_and_another_stands_by() -> None:
    servers = {COORDINATOR: ALIVE, shard(0): DEAD, shard(1): ALIVE, shard(2): ALIVE, shard(3): DEAD}
    told: dict[str, Any] = {"serving": (shard(0), shard(1)), "backups": (shard(2), shard(3)), "num_shards": 2}
    plan = reconcile(seen(servers=servers, num_backups=1, **told))
    assert acts(plan) == [("promote", 0), ("promote", 3), ("stand_by", 1)]
    assert (plan.state, "its backup takes its place" in plan.reason) == (JobState.RECOVERING, True)
    late = reconcile(seen(servers=servers, num_backups=1, orphaned_s=60.0, has_checkpoint=True, **told))
    assert acts(late) == [("recover", None)], "its backup never said that it knows all"
    both = reconcile(seen(servers=servers | {shard(2): DEAD}, num_backups=1, has_checkpoint=True, **told))
    assert acts(both) == [("recover", None)]
    untold = reconcile(seen(servers=servers, num_backups=1, num_shards=2, has_checkpoint=True))
    assert "recover" not in [act for act, _ in acts(untold)], "who serves now is not known yet"


def test_a_dead_coordinator_is_succeeded_but_not_for_ever() -> None:
    dead = {COORDINATOR: DEAD, shard(0): ALIVE}
    plan = reconcile(seen(servers=dead))
    assert plan.state is JobState.RECOVERING
    assert [action.act.value for action in plan.actions] == ["succeed"]
    again = reconcile(seen(servers=dead, retries=spent(Cause.COORDINATOR, 3), now_s=99.0))
    assert again.state is JobState.FAILED
    assert "died (killed) after it was started again 3 times without a step between them; look at" in again.reason
    soon = reconcile(seen(servers=dead, retries=spent(Cause.COORDINATOR, 2), now_s=1.0))
    assert (soon.state, soon.actions) == (JobState.RECOVERING, ())
    assert soon.reason.endswith("another one takes over, 2 s after the last time")
    starting = reconcile(seen(servers={COORDINATOR: ActorSeen(Life.STARTING), shard(0): ALIVE}))
    assert (starting.state, "takes over" in starting.reason) == (JobState.RECOVERING, True)


def test_raising_code_is_not_run_again() -> None:
    plan = reconcile(seen(workers={0: ALIVE, 1: ActorSeen(Life.FAILED, "ValueError: no")}))
    assert plan == (JobState.FAILED, "worker/1: ValueError: no", ())


def test_stopping_in_good_order_and_by_force() -> None:
    assert reconcile(seen(stop=StopAsked("enough", False))).state is JobState.STOPPING
    assert reconcile(seen(stop=StopAsked("enough", True))).state is JobState.STOPPED
    assert reconcile(seen(stop=StopAsked("enough", False), has_finished=True)) == (JobState.STOPPED, "enough", ())
    assert reconcile(seen(has_finished=True)).state is JobState.SUCCEEDED


def test_a_job_without_its_model_has_not_succeeded() -> None:
    plan = reconcile(seen(has_finished=True, lacks_model=True))
    assert plan.state is JobState.FAILED
    assert "final/model.pt is not in the job's folder" in plan.reason
    stopped = seen(has_finished=True, lacks_model=True, stop=StopAsked("enough", False))
    assert reconcile(stopped).state is JobState.STOPPED, "who stops a job before it began asks for no model"


WORKERS = st.integers(0, 5).map(worker)
LIVES = st.builds(ActorSeen, st.sampled_from(Life), st.just("why"), st.none() | st.sampled_from(Cause))


@given(
    st.builds(
        Seen,
        state=st.sampled_from(list(JobState)),
        actors=st.dictionaries(st.sampled_from([COORDINATOR, shard(0)]) | WORKERS, LIVES),
        members=st.frozensets(WORKERS),
        leaving=st.frozensets(WORKERS),
        wanted_workers=st.integers(1, 5),
        shortage=st.none() | st.just("no room"),
        has_begun=st.booleans(),
        has_finished=st.booleans(),
        lacks_model=st.booleans(),
        is_paused=st.booleans(),
        stop=st.none() | st.builds(StopAsked, st.just("enough"), st.booleans()),
        has_checkpoint=st.booleans(),
        retries=st.builds(
            Retries,
            st.dictionaries(
                st.sampled_from(Cause), st.builds(Incidents, in_a_row=st.integers(0, 9), began_s=st.just(0.0))
            ),
        ),
        now_s=st.sampled_from([0.5, 99.0]),
        rolls_back=st.booleans(),
        serving=st.sampled_from([(), (shard(0),), (shard(1),)]),
        backups=st.sampled_from([(), (None,), (shard(2),)]),
        num_backups=st.integers(0, 1),
        orphaned_s=st.sampled_from([0.0, 60.0]),
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
        assert (action.who is None) == (action.act in (Act.ADD, Act.LAUNCH, Act.RECOVER))
        if action.act is Act.RETIRE:
            assert any_seen.actors[action.who].life in (Life.ALIVE, Life.STARTING)
        if action.act is Act.REMOVE_DEAD:
            assert any_seen.actors[action.who].life is Life.DEAD
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


BUSY, WHOLE = {"a": {"CPU": 3.0}}, {"a": {"CPU": 8.0}}


@pytest.mark.parametrize(
    ("count", "demand", "taken", "words"),
    [
        (4, {"CPU": 2.0}, {}, None),
        (1, {"CPU": 5.0}, {}, None),
        (50, {"CPU": 1.0}, {}, "; 3 fit now, and 50 never will: this cluster has 8 CPU on 1 node, room for 8. Lower"),
        (4, {"CPU": 1.0}, {"a": 5}, "4 beside the 5 there are never will"),
        (1, {"CPU": 1.0, "GPU": 1.0}, {}, "Lower scale.workers or scale.gpus_per_worker, or add nodes"),
        (1, {"CPU": 9.0}, {}, "1 worker needs 9 CPU; 0 fit now"),
    ],
)
def test_a_job_that_can_never_fit_is_told_from_one_that_may(
    count: int, demand: dict[str, float], taken: dict[str, int], words: str | None
) -> None:
    found = place(count, demand, BUSY, "spread", taken, WHOLE)
    assert isinstance(found, Shortage)
    assert found.is_lasting == (words is not None)
    assert ("never" in found.reason) == (words is not None)
    assert (words or "free on 1 node)") in found.reason
    may_grow = place(count, demand, BUSY, "spread", taken)
    assert isinstance(may_grow, Shortage)
    assert not may_grow.is_lasting


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"wanted_workers": 4, "num_shards": 2}, "starting 4 workers, 2 shards and the coordinator"),
        ({"wanted_workers": 1, "num_shards": 1}, "starting 1 worker, 1 shard and the coordinator"),
        (
            {"wanted_workers": 4, "num_shards": 2, "shards_in_workers": True},
            "starting 4 workers with 2 shards in them and the coordinator",
        ),
    ],
)
def test_the_reason_of_starting_says_what_starts(changes: dict[str, Any], reason: str) -> None:
    plan = reconcile(seen(state=JobState.PENDING, servers={}, workers={}, has_begun=False, **changes))
    assert (plan.state, plan.reason) == (JobState.STARTING, reason)


def test_what_one_worker_needs() -> None:
    assert demand_of(Scale(cpus_per_worker=0.5)) == {"CPU": 0.5}
    assert demand_of(Scale(gpus_per_worker=1)) == {"CPU": 1, "GPU": 1}


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
    alone = [((shard(0),), "a"), ((shard(1),), "b"), ((shard(2),), "a"), ((shard(3),), "a")]
    assert beside == ("a", alone, [(), (), ()])
    inside = seat_servers(nodes, 2, "workers")
    assert inside == ("a", [], [(shard(0),), (shard(1),), ()])
    assert seat_servers(["b"], 3, "workers").guests == [(shard(0), shard(1), shard(2))]


@pytest.mark.parametrize("shards_in", ["actors", "workers"])
@pytest.mark.parametrize("num_shards", [1, 2, 3, 5])
@pytest.mark.parametrize("nodes", [["a"], ["a", "b"], ["a", "a", "b"]])
def test_no_process_has_a_shard_and_its_backup_and_no_node_where_there_are_two(
    nodes: list[str], num_shards: int, shards_in: Any
) -> None:
    seats = seat_servers(nodes, num_shards, shards_in, num_backups=1)
    processes = [*seats.shards, *zip(seats.guests, nodes, strict=True)]
    host = {who: (number, node) for number, (found, node) in enumerate(processes) for who in found}
    assert host.keys() == {shard(index) for index in range(2 * num_shards)}
    for slot in range(num_shards):
        first, second = host[shard(slot)], host[shard(slot + num_shards)]
        assert first[0] != second[0]
    if num_shards == 1 and len({*nodes}) > 1 and shards_in == "actors":
        assert host[shard(0)][1] != host[shard(1)][1]


def _stages(**lives: Life) -> dict[Address, ActorSeen]:
    """Two pipelines of two stages, all alive but those given as s0_d1=..."""
    found = {stage(s, d): ActorSeen(Life.ALIVE) for s in range(2) for d in range(2)}
    for name, life in lives.items():
        number, pipeline = (int(part[1:]) for part in name.split("_"))
        found[stage(number, pipeline)] = ActorSeen(life, "gone")
    return found


def _mesh(actors: dict[Address, ActorSeen], **changes: Any) -> Seen:
    fields = {"members": frozenset({stage(0, 0), stage(0, 1)}), "wanted_workers": 2, "num_stages": 2, "has_begun": True}
    return Seen(state=JobState.RUNNING, actors=actors, **{**fields, **changes})


def test_a_stage_that_died_is_started_again_under_its_address() -> None:
    plan = reconcile(_mesh(_stages(s1_d1=Life.DEAD)))
    assert plan.actions == (Action(Act.REMOVE_DEAD, stage(1, 1)), Action(Act.ADD, stage(1, 1)))
    assert plan.state is JobState.RECOVERING
    assert "stage 1 of pipeline 1 died" in plan.reason


def test_a_pipeline_that_died_as_a_whole_is_replaced_by_another() -> None:
    plan = reconcile(_mesh(_stages(s0_d1=Life.DEAD, s1_d1=Life.DEAD)))
    assert plan.actions[-1] == Action(Act.ADD)
    assert {action.act for action in plan.actions[:-1]} == {Act.REMOVE_DEAD}


def test_a_leaving_pipeline_that_loses_a_stage_is_let_go() -> None:
    actors = _stages()
    del actors[stage(1, 1)]
    plan = reconcile(_mesh(actors, leaving=frozenset({stage(0, 1)}), wanted_workers=1))
    assert Action(Act.DISMISS, stage(0, 1)) in plan.actions
    assert not [action for action in plan.actions if action.act is Act.ADD]


def test_pipelines_are_named_as_such() -> None:
    assert reconcile(_mesh(_stages())).reason == "2 pipelines train"
    pending = Seen(state=JobState.PENDING, wanted_workers=2, num_stages=2)
    assert reconcile(pending).reason == "starting 2 pipelines of 2 stages, 1 shard and the coordinator"


def test_a_pipelines_neighbours_come_close_and_its_replicas_apart() -> None:
    members = sorted(stage(s, d) for s in range(2) for d in range(2))
    wanted = Wanted({"CPU": 1.0}, "spread", {}, {})
    placed = place_all(members, wanted, {"a": {"CPU": 4.0}, "b": {"CPU": 4.0}})
    assert not isinstance(placed, Shortage)
    by_member = dict(zip(members, placed, strict=True))
    for pipeline in range(2):
        assert by_member[stage(0, pipeline)] == by_member[stage(1, pipeline)]
    assert by_member[stage(0, 0)] != by_member[stage(0, 1)]
    apart = place_all([stage(0, 0), stage(1, 0)], wanted, {"a": {"CPU": 1.0}, "b": {"CPU": 1.0}})
    assert sorted(apart) == ["a", "b"], "where no node has room for all of it"
    again = place_all([stage(1, 0)], wanted._replace(near={0: "b"}), {"a": {"CPU": 9.0}, "b": {"CPU": 1.0}})
    assert again == ["b"]
    again = place_all([stage(1, 0)], wanted._replace(near={0: "lost"}), {"a": {"CPU": 9.0}})
    assert again == ["a"]
    short = place_all(members, wanted, {"a": {"CPU": 3.0}})
    assert isinstance(short, Shortage)
    assert short.reason.startswith("4 workers need 1 CPU each; 3 fit now")

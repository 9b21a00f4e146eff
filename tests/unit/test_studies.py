"""Studies without Ray: the space, the specification, the front and its picks, and the book that keeps them."""

from __future__ import annotations

import io
import itertools
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import tune_configs
from raysync.errors import SpecError
from raysync.spec import parse_spec, parse_text
from raysync.study import Dimension, Kind, Seen, State, StudySpec, Trial, outcome, parse_study
from raysync.study.ending import ending as how_it_ended
from raysync.study.front import Scored, dominates, front, hypervolume, knee
from raysync.study.outcome import hypervolumes, worth
from raysync.study.room import at_once, never
from raysync.study.space import draw, ordered, with_point
from service.cli.study_changes import changed, continued
from service.cli.study_pictures import draw_study
from service.cli.study_scale import Scale
from service.cli.study_table import StudyTable
from tune_configs.book import Book
from tune_configs.scheduling import scheduler_of
from tune_configs.search import StudySearch
from tune_configs.store import StudyStore
from tune_configs.study import write_picks

BASE = {
    "task": {"kind": "digits"},
    "strategy": {"kind": "selsync", "delta": 0.1},
    "compression": {"push": {"kind": "topk", "ratio": 0.05}},
    "budget": {"steps": 100},
}
SPACE = {
    "compression.push.kind": {"choice": ["topk", "onebit"]},
    "compression.push.ratio": {"low": 0.01, "high": 0.1, "log": True, "when": {"compression.push.kind": ["topk"]}},
}
FLOOR = {"metric": "eval/accuracy", "at_least": 0.9}


def study(**changes: Any) -> StudySpec:
    return parse_study({"name": "test", "base": BASE, "space": SPACE, "floor": FLOOR, **changes})


# The front

points = st.lists(
    st.tuples(st.floats(1.0, 1e9), st.floats(0.0, 1.0)).map(lambda pair: pair), min_size=1, max_size=40
).map(lambda pairs: [Scored(number, *pair) for number, pair in enumerate(pairs)])


@given(points)
@settings(max_examples=200, deadline=None)
def test_nothing_dominates_the_front_and_the_front_dominates_the_rest(scored: list[Scored]) -> None:
    found = front(scored)
    assert found == sorted(found, key=lambda one: one.cost)
    for one in found:
        assert not any(dominates(other, one) for other in scored)
    for other in scored:
        equal = any((other.cost, other.quality) == (one.cost, one.quality) for one in found)
        assert other in found or equal or any(dominates(one, other) for one in found)
    assert knee(found) in found


@given(points)
@settings(max_examples=100, deadline=None)
def test_the_area_grows_with_the_trials_and_is_that_of_the_front(scored: list[Scored]) -> None:
    areas = [hypervolume(scored[:count], 2e9, -0.1) for count in range(1, len(scored) + 1)]
    assert all(less <= more + 1e-9 for less, more in itertools.pairwise(areas))
    assert areas[-1] == pytest.approx(hypervolume(front(scored), 2e9, -0.1))


def test_the_area_of_two_by_hand() -> None:
    found = [Scored(0, math.e, 0.5), Scored(1, math.e**2, 0.8)]
    assert hypervolume(found, math.e**3, 0.0) == pytest.approx(1 * 0.8 + 1 * 0.5)


def test_the_knee_is_where_the_front_bends() -> None:
    bent = [Scored(0, 10, 0.90), Scored(1, 20, 0.97), Scored(2, 1000, 0.98)]
    assert knee(bent).number == 1
    assert knee(bent[:1]).number == 0
    assert knee([bent[0], bent[2]]).number == 0, "of two the cheaper"


# The space


def test_fields_come_after_what_they_depend_on() -> None:
    spec = study(space=dict(reversed(SPACE.items())))
    assert ordered(spec.space) == ["compression.push.kind", "compression.push.ratio"]
    first = draw(spec.space, lambda _, dimension: dimension.corners[0])
    assert first == {"compression.push.kind": "topk", "compression.push.ratio": 0.01}
    assert draw(spec.space, lambda _, dimension: dimension.corners[-1]) == {"compression.push.kind": "onebit"}
    circle = {"a": Dimension(choice=(1,), when={"b": (1,)}), "b": Dimension(choice=(1,), when={"a": (1,)})}
    with pytest.raises(ValueError, match="depend on each other"):
        ordered(circle)


def test_another_kind_clears_away_what_the_one_before_had() -> None:
    assert with_point(BASE, {"compression.push.kind": "onebit"})["compression"] == {"push": {"kind": "onebit"}}
    assert with_point(BASE, {"compression.push.kind": "topk"})["compression"]["push"]["ratio"] == 0.05
    assert BASE["compression"] == {"push": {"kind": "topk", "ratio": 0.05}}, "the job itself stays as it was"
    spec = study(space={"strategy.signal.alpha": {"low": 0.1, "high": 0.5}})
    job = spec.job({"strategy.signal.alpha": 0.2})
    assert job.strategy.signal.alpha == 0.2, "a part that is not spelt out is of the kind it has by default"
    assert job.strategy.delta == 0.1
    kinds = {"strategy.kind": {"choice": ["local_sgd", "selsync"]}}
    alpha = {"strategy.signal.alpha": {"low": 0.1, "high": 0.5, "when": {"strategy.kind": ["selsync"]}}}
    spec = study(base={**BASE, "strategy": {"kind": "local_sgd"}}, space={**kinds, **alpha})
    found = spec.job({"strategy.kind": "selsync", "strategy.signal.alpha": 0.3})
    assert found.strategy.signal.alpha == 0.3, "of the kind the point itself chooses"


def test_the_baseline_of_an_asynchronous_pipeline_is_a_synchronous_one() -> None:
    late = {"strategy": {"kind": "local_sgd"}, "schedule": {"kind": "async_one_f_one_b"}, "scale": {"stages": 2}}
    spec = study(base={**BASE, **late}, space={"optimizer.lr": {"low": 0.1, "high": 0.2}})
    assert spec.dense.schedule is not None
    assert (spec.dense.schedule.kind, spec.dense.strategy.kind) == ("one_f_one_b", "bsp")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"floor": {"metric": "eval/accuracy"}}, "either `at_least` or `at_most`"),
        ({"floor": {"metric": "train/loss", "at_most": 1}}, "must be an evaluation metric"),
        ({"floor": {"metric": "eval/bleu", "at_least": 1}}, "has no metric 'eval/bleu' for the floor"),
        ({"base": {"task": {"kind": "nothing"}}}, "base makes no job: task.kind: got 'nothing'"),
        ({"space": {}}, "at least 1"),
        ({"space": {"strategy.dleta": {"low": 0, "high": 1}}}, "strategy.dleta: got 0.0; there is no such field"),
        ({"space": {"strategy.delta": {"low": 1, "high": 0}}}, "low=1 must be below high=0"),
        ({"space": {"strategy.delta": {"low": 0, "high": 1, "log": True}}}, "needs low > 0"),
        ({"space": {"strategy.delta": {"low": 0}}}, "either `choice`, or `low` and `high`"),
        ({"space": {"strategy.delta": {"choice": []}}}, "name at least one value"),
        ({"space": {"strategy.delta": {"choice": [0.1, -1]}}}, "space.strategy.delta=-1 makes no job"),
        ({"objective": {"minimise": "predicted_s"}}, "at_mbit is needed"),
        ({"scheduler": {"kind": "pbt"}}, "compression.push.kind is none of them: "),
        ({"trails": 3}, "did you mean 'trials'?"),
        (
            {"space": {"strategy.delta": {"choice": [1], "when": {"strategy.kind": ["selsync"]}}}},
            "the space does not have",
        ),
        ({"scheduler": {"kind": "pbt"}, "space": {"strategy.delta": {"choice": [1]}}, "seeds": 2}, "no use for seeds"),
    ],
)
def test_a_study_that_cannot_be_is_refused_with_what_to_do(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError) as refused:
        study(**changes)
    assert words in str(refused.value)
    assert "in the study" in str(refused.value)
    assert len(str(refused.value)) < 600


@pytest.mark.parametrize("name", tune_configs.names())
def test_searches_that_come_with_raysync_are_whole(name: str) -> None:
    spec = tune_configs.load(name)
    assert spec.name == name
    assert spec.text.endswith(".")
    assert spec.dense.strategy.kind == "bsp"
    assert spec.dense.compression.push.kind == "identity"


def test_an_unknown_search_names_those_there_are() -> None:
    with pytest.raises(SpecError, match=r"compression_ratio.*pbt_knobs"):
        tune_configs.load("nothing")


# The answer


def ended(number: int, quality: float, cost: float | None, state: State = State.REACHED, **more: Any) -> Trial:
    kind = {0: Kind.OWN, 1: Kind.DENSE}.get(number, Kind.SEARCHED)
    point = {"compression.push.kind": "onebit"} if number > 1 else {}
    return Trial(
        number=number, kind=kind, point=point, state=state, quality=quality, cost=cost, total_bytes=cost, **more
    )


TRIALS = (
    ended(0, 0.95, 2e6),
    ended(1, 0.96, 1e8),
    ended(2, 0.93, 5e5),
    ended(3, 0.95, 8e5),
    ended(4, 0.5, None, State.MISSED),
    ended(5, 0.99, 10.0, State.STOPPED),
    ended(6, 0.92, 9e5),
)


def test_only_trials_that_reached_the_floor_are_on_the_front() -> None:
    found = outcome(study(), TRIALS)
    assert [trial.number for trial in found.front] == [2, 3, 1]
    assert {pick.name: pick.trial.number for pick in found.picks} == {"smallest": 2, "knee": 3, "best": 1}
    assert found.picks[0].sentence == "eval/accuracy 0.93 (dense 0.96) with 200 x fewer bytes"
    assert worth(study(), ended(0, 0.96, 9.9e7), TRIALS[1]).endswith("(as dense) without fewer bytes to speak of")
    assert found.sentence.endswith("of 7 trials 1 missed the floor, 1 stopped early")
    assert outcome(study(), TRIALS[4:6]).sentence.startswith("no trial reached eval/accuracy >= 0.9")


def test_less_may_be_better() -> None:
    spec = study(floor={"metric": "eval/loss", "at_most": 1.0})
    trials = [ended(0, 0.9, 100.0), ended(1, 0.8, 200.0), ended(2, 0.95, 300.0)]
    assert [trial.number for trial in outcome(spec, trials).front] == [0, 1]
    areas = hypervolumes(spec, trials)
    assert areas == sorted(areas)
    assert areas[-1] > 0


# The book


def ending(job: str, qualities: list[float], state: str = "SUCCEEDED", reason: str = "") -> dict[str, Any]:
    seeds = [
        [{"step": 50 * n, "quality": q, "bytes": 100.0 * n, "time_s": 1.0 * n} for n, q in enumerate(qualities, 1)]
    ]
    return {"job": job, "ended": {"state": state, "reason": reason, "told": [], "jobs": [job], "seeds": seeds}}


def begin(tmp_path: Path, **changes: Any) -> tuple[Book, StudySearch]:
    spec = study(**changes)
    store = StudyStore.create(tmp_path, spec)
    book = Book(store, spec)
    return book, StudySearch(book, lambda _, trial: {"number": trial.number, **trial.point})


@pytest.mark.parametrize("search", ["random", "optuna"])
def test_a_study_that_was_killed_goes_on_where_it_was(search: str, tmp_path: Path) -> None:
    book, asked = begin(tmp_path, trials=6, search={"kind": search})
    configs = [asked.suggest(f"a{number}") for number in range(4)]
    for number in (0, 1, 2):
        book.saw(f"a{number}", ending(f"job-{number}", [0.5, 0.95]))
        asked.tell(book.of(f"a{number}"))
    before = [trial for trial in book.store.trials() if trial.state.is_over]
    assert [(trial.state, trial.cost) for trial in before] == [(State.REACHED, 200.0)] * 3

    again = Book(StudyStore.open(tmp_path, book.store.id), book.store.spec())
    asked = StudySearch(again, lambda _, trial: {"number": trial.number, **trial.point})
    rest = [asked.suggest(f"b{number}") for number in range(3)]
    assert rest[0]["trial"] == configs[3]["trial"], "the one that had begun is begun again, at its point"
    assert [config["trial"]["number"] for config in rest] == [3, 4, 5]
    assert asked.suggest("b3") == "FINISHED"
    for number in range(3):
        again.saw(f"b{number}", ending(f"job-b{number}", [0.95]))
        asked.tell(again.of(f"b{number}"))
    assert again.store.trials()[:3] == before, "what was over is untouched"
    points = [str(trial.point) for trial in again.store.trials()[2:]]
    assert len(set(points)) >= 2, "what is drawn after a restart is not drawn from the start again"
    if search == "optuna":
        study = asked._sampler._study
        assert [found.state.name for found in study.get_trials()] == ["COMPLETE"] * 4


def test_values_that_do_not_go_together_are_a_failed_trial_and_no_end(tmp_path: Path) -> None:
    def config(trial_id: str, trial: Trial) -> dict[str, Any]:
        if trial.number == 0:
            parse_spec({"task": {"kind": "digits"}, "strategy": {"kind": "bsp", "delta": 1}})
        return {"number": trial.number}

    book, _ = begin(tmp_path, trials=3)
    asked = StudySearch(book, config)
    assert asked.suggest("a")["trial"]["number"] == 1
    assert book.trials[0].state is State.FAILED
    assert "there is no such field" in book.trials[0].reason


def test_a_study_whose_every_trial_fails_alike_ends_with_that_reason(tmp_path: Path) -> None:
    book, asked = begin(tmp_path, trials=10, max_failures=3)
    for number, reason in enumerate(["out of memory", "NaN", "NaN", "NaN"]):
        asked.suggest(f"a{number}")
        assert not book.is_stopping
        book.saw(f"a{number}", ending(f"job-{number}", [], "FAILED", f"{reason}\nat step {number}"))
    assert book.is_stopping
    assert book.problem == "3 trials in a row failed: NaN"
    assert asked.suggest("a9") == "FINISHED"


def test_reasons_are_the_same_whatever_step_or_process_they_name(tmp_path: Path) -> None:
    book, asked = begin(tmp_path, trials=10, max_failures=2)
    for number in range(2):
        asked.suggest(f"a{number}")
        book.saw(f"a{number}", ending(f"job-{number}", [], "FAILED", f"worker/{number} (pid 71{number}) saw NaN"))
    assert book.problem == "2 trials in a row failed: worker/1 (pid 711) saw NaN"


@pytest.mark.parametrize(
    ("reasons", "state", "words"),
    [
        (["out of memory", "NaN"], "FAILED", "all 2 trials failed: out of memory; NaN"),
        (["NaN"], "STOPPED", "1 of 2 trials are left; no trial reached"),
        (["NaN", ""], "SUCCEEDED", "no trial reached eval/accuracy >= 0.9; of 2 trials 1 missed the floor, 1 failed"),
    ],
)
def test_a_study_of_failures_alone_has_failed_however_short_it_is(
    reasons: list[str], state: str, words: str, tmp_path: Path
) -> None:
    book, asked = begin(tmp_path, trials=2)
    for number, reason in enumerate(reasons):
        asked.suggest(f"a{number}")
        found = ending("j", [], "FAILED", reason) if reason else ending("j", [0.1])
        book.saw(f"a{number}", found)
    trials = tuple(book.trials.values())
    found_state, why = how_it_ended(book.spec, trials, outcome(book.spec, trials), book.problem)
    assert found_state == state
    assert why.startswith(words)


def test_values_of_which_the_last_is_the_number_of_workers_cost_what_so_many_lines_take(tmp_path: Path) -> None:
    objective = {"minimise": "predicted_s", "at_mbit": 8}
    book, asked = begin(tmp_path, trials=9, objective=objective, space={"scale.workers": {"choice": [2, 8]}})
    costs = {}
    for number in range(9):
        asked.suggest(f"a{number}")
        book.saw(f"a{number}", ending("j", [0.95]))
        trial = book.trials[number]
        costs[trial.point.get("scale.workers")] = trial.cost
    assert costs[2] == pytest.approx(4 * costs[8])


@pytest.mark.parametrize(
    ("scale", "count"),
    [
        ({"workers": 2, "cpus_per_worker": 1}, 3),
        ({"workers": 3, "cpus_per_worker": 1}, 2),
        ({"workers": 2, "cpus_per_worker": 0.5}, 5),
        ({"workers": 2, "cpus_per_worker": 0.1, "gpus_per_worker": 1}, 1),
        ({"workers": 2, "cpus_per_worker": 3}, 1),
        ({"workers": 1, "cpus_per_worker": 5}, 0),
    ],
)
def test_as_many_jobs_at_once_as_the_nodes_have_room_for(scale: dict[str, Any], count: int) -> None:
    job = parse_spec({**BASE, "scale": scale})
    nodes = {"a": {"CPU": 3.0, "GPU": 2.0}, "b": {"CPU": 4.0}}
    assert at_once(job, nodes, 5) == count
    assert (never(job, nodes) is None) == (count > 0)


def test_why_a_job_never_fits_names_what_to_lower() -> None:
    reason = never(parse_spec({**BASE, "scale": {"workers": 9, "cpus_per_worker": 1}}), {"a": {"CPU": 2.0}})
    assert reason is not None
    assert "9 never will" in reason
    assert "Lower scale.workers" in reason


def test_no_more_trials_at_once_than_there_is_room_for_now(tmp_path: Path) -> None:
    book, _ = begin(tmp_path, trials=5)
    room = [1]
    asked = StudySearch(book, lambda _, trial: {"number": trial.number}, lambda: room[0])
    assert asked.suggest("a")["trial"]["number"] == 0
    assert asked.suggest("b") is None, "not yet"
    room[0] = 2
    assert asked.suggest("b")["trial"]["number"] == 1, "a node has come"
    book.saw("a", ending("j", [0.95]))
    room[0] = 1
    assert asked.suggest("c") is None, "a node has gone"


def test_a_job_that_never_tells_the_floors_metric_has_failed_and_says_what_it_told(tmp_path: Path) -> None:
    book, asked = begin(tmp_path)
    asked.suggest("a")
    found = ending("j", [])
    found["ended"]["told"] = ["eval/bleu", "eval/loss"]
    book.saw("a", found)
    assert book.trials[0].state is State.FAILED
    assert book.trials[0].reason == "the job told no eval/accuracy; it told eval/bleu, eval/loss"


def test_trials_that_a_stopped_study_leaves_are_begun_again(tmp_path: Path) -> None:
    book, asked = begin(tmp_path, trials=3)
    for name in ("a", "b"):
        asked.suggest(name)
    book.is_stopping = True
    book.stopped("a")
    book.saw("b", ending("j", [0.5], "STOPPED"))
    assert [trial.state for trial in book.store.trials()] == [State.RUNNING] * 2
    again = Book(book.store, book.spec)
    asked = StudySearch(again, lambda _, trial: {"number": trial.number})
    assert [asked.suggest(name)["trial"]["number"] for name in ("c", "d", "e")] == [0, 1, 2]


@pytest.mark.parametrize("kind", ["asha", "median"])
def test_a_scheduler_is_given_what_it_would_have_seen(kind: str, tmp_path: Path) -> None:
    spec = study(scheduler={"kind": kind, "grace_steps": 10})
    curve = [Seen(step, 0.8, 1.0, 1.0) for step in (10, 30, 60)]
    known = [Trial(number=n, kind=Kind.SEARCHED, point={}, state=State.MISSED, seen=curve) for n in range(6)]

    class Other:
        trial_id = "new"

    scheduler = scheduler_of(spec, known)
    scheduler.on_trial_add(None, Other)
    told = scheduler.on_trial_result(None, Other, {"step": 10, "promise": 0.1})
    assert told == "STOP", "a bad trial is stopped by what others did before the restart"
    fresh = scheduler_of(spec, [])
    fresh.on_trial_add(None, Other)
    assert fresh.on_trial_result(None, Other, {"step": 10, "promise": 0.1}) == "CONTINUE"


def test_knobs_stay_between_their_ends() -> None:
    space = {"strategy.delta": {"low": 0.1, "high": 0.2}, "optimizer.lr": {"low": 0.01, "high": 0.1}}
    clamp = scheduler_of(study(space=space, scheduler={"kind": "pbt"}), [])._custom_explore_fn
    config = {"trial": {"knobs": {"strategy.delta": 0.5, "optimizer.lr": 0.001}}}
    assert clamp(config)["trial"]["knobs"] == {"strategy.delta": 0.2, "optimizer.lr": 0.01}


def test_a_trial_that_is_stopped_early_says_where_and_counts_for_nothing(tmp_path: Path) -> None:
    book, asked = begin(tmp_path, scheduler={"kind": "asha", "grace_steps": 10, "reduction": 2})
    asked.suggest("a")
    book.saw("a", {"job": "j", "seen": {"step": 25, "quality": 0.95, "bytes": 1.0, "time_s": 1.0}})
    stopped = book.stopped("a")
    assert stopped.reason == "asha: others were better at step 25"
    assert stopped.rungs == [10, 20]
    assert outcome(book.spec, [stopped]).front == ()


def test_a_point_counts_if_all_its_seeds_reach_the_floor(tmp_path: Path) -> None:
    book, asked = begin(tmp_path, seeds=2)
    for number, last in enumerate((0.95, 0.8)):
        asked.suggest(f"a{number}")
        found = ending("j", [0.92])
        found["ended"]["seeds"].append([{"step": 50, "quality": last, "bytes": 300.0, "time_s": 1.0}])
        book.saw(f"a{number}", found)
    good, bad = book.trials[0], book.trials[1]
    assert (good.state, good.quality, good.cost, good.total_bytes) == (State.REACHED, 0.92, 200.0, 200.0)
    assert (bad.state, bad.quality, bad.cost) == (State.MISSED, 0.8, None)


def test_a_pick_is_a_job_that_can_be_submitted(tmp_path: Path) -> None:
    spec = study()
    store = StudyStore.create(tmp_path, spec)
    write_picks(store, spec, outcome(spec, TRIALS))
    text = (store.folder / "picks" / "smallest.yaml").read_bytes()
    job = parse_text(text, "smallest.yaml")
    assert job.compression.push.kind == "onebit"
    assert job.strategy.delta == 0.1
    assert b"200 x fewer bytes" in text.splitlines()[0]


def test_one_process_at_a_time_runs_a_study(tmp_path: Path) -> None:
    store = StudyStore.create(tmp_path, study())
    with store.held(), pytest.raises(SpecError, match="another process"), store.held():
        pass
    with pytest.raises(SpecError, match=store.id):
        StudyStore.open(tmp_path, "other")


def test_costs_by_bytes_time_and_prediction() -> None:
    from raysync.study.outcome import cost_of

    seen = [Seen(9, 0.5, 1e6, 1.0, 0.01), Seen(19, 0.95, 2e6, 3.0, 0.01), Seen(29, 0.99, 3e6, 4.0, 0.01)]
    assert cost_of(study(), seen, 4) == 2e6
    assert cost_of(study(objective={"minimise": "wall_s"}), seen, 4) == 3.0
    predicted = study(objective={"minimise": "predicted_s", "at_mbit": 10})
    for workers in (1, 4):
        assert cost_of(predicted, seen, workers) == pytest.approx(20 * 0.01 + 8 * 2e6 / workers / 10e6)
    assert cost_of(study(), seen[:1], 4) is None


@pytest.mark.parametrize("trials", [(), TRIALS[4:5], TRIALS])
def test_whatever_there_is_of_a_study_can_be_drawn(trials: tuple[Trial, ...], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pip install matplotlib")
    found = draw_study(study(), trials, tmp_path)
    assert [path.name for path in found] == ["front.png", "trials.png", "hypervolume.png", "parallel.png"]
    assert all(path.stat().st_size > 5_000 for path in found)


def test_a_study_is_told_line_by_line_where_nobody_looks_at_a_terminal() -> None:
    console = Console(file=io.StringIO(), width=200)
    with StudyTable("test-1", study(), console) as table:
        for trial in (*TRIALS[:3], ended(7, 0.5, None, State.FAILED, reason="[/tmp/a] is full\nmore")):
            table.show(trial)
            table.show(trial)
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 4, "each end once"
    assert lines[0].startswith("trial 0 REACHED: your own job")
    assert lines[3] == "trial 7 FAILED: kind=onebit: [/tmp/a] is full"


# What the command line changes


def test_fields_of_the_space_are_changed_under_their_own_paths(tmp_path: Path) -> None:
    spec = study(space={"optimizer.lr": {"low": 0.1, "high": 0.2, "log": True}, "strategy.delta": {"choice": [0.1]}})
    found = changed(
        spec, {"space.optimizer.lr.high": 0.5, "space.strategy.delta.choice": [0.4], "floor.at_least": 0.8}, 9
    )
    assert (found.space["optimizer.lr"].low, found.space["optimizer.lr"].high) == (0.1, 0.5)
    assert found.space["strategy.delta"].choice == (0.4,)
    assert (found.floor.at_least, found.trials) == (0.8, 9)
    found = changed(spec, {"space.optimizer.lr.choice": [0.1, 0.3], "scheduler.kind": "median"})
    assert found.space["optimizer.lr"] == Dimension(choice=(0.1, 0.3)), "one way to say it takes the place of the other"
    assert found.scheduler.kind == "median"
    found = changed(spec, {"space.strategy.max_interval": {"choice": [5, 9]}})
    assert len(found.space) == 3
    with pytest.raises(SpecError, match="did you mean 'at_least'"):
        changed(spec, {"floor.at_leas": 0.8})


def test_a_search_goes_around_a_users_own_job(tmp_path: Path) -> None:
    own = tmp_path / "job.yaml"
    own.write_text("task: {kind: digits, hidden: [16]}\nstrategy: {kind: local_sgd}\nbudget: {steps: 50}\n")
    found = changed(study(), {}, None, own)
    assert found.job({}).strategy.kind == "local_sgd"
    assert found.job({"compression.push.kind": "onebit"}).budget.steps == 50
    with pytest.raises(SpecError, match="no such field"):
        changed(study(space={"strategy.delta": {"low": 0.1, "high": 1}}), {}, None, own)


def test_what_trials_were_judged_by_stays(tmp_path: Path) -> None:
    spec = study(trials=6)
    assert continued(spec, 4, {}, (20, True)).trials == 26, "on top of those there are to be"
    assert continued(spec, 4, {"max_concurrent": 2}, (8, False)).trials == 8
    for changes, trials, job in (({"floor.at_least": 0.1}, None, None), ({}, (3, False), None), ({}, None, tmp_path)):
        with pytest.raises(SpecError, match=r"keeps it|have been begun"):
            continued(spec, 4, changes, trials, job)


def test_a_job_given_as_a_search_is_told_from_one() -> None:
    with pytest.raises(SpecError, match=r"this is a job, not a search.*--job"):
        parse_study(BASE)


def test_trials_that_failed_are_begun_again_where_that_is_asked(tmp_path: Path) -> None:
    book, asked = begin(tmp_path, trials=4)
    points = []
    for number in range(3):
        points.append(asked.suggest(f"a{number}")["trial"])
        book.saw(f"a{number}", ending("j", [0.95]) if number == 1 else ending("j", [], "FAILED", "the disk is full"))
        asked.tell(book.of(f"a{number}"))
    book.store.begin_failed_again()
    again = Book(book.store, book.spec)
    assert again.trials[1] == book.trials[1]
    asked = StudySearch(again, lambda _, trial: {"number": trial.number, **trial.point})
    assert [asked.suggest(name)["trial"] for name in ("b", "c")] == [points[0], points[2]]
    for name in ("b", "c"):
        again.saw(name, ending("j", [0.95]))
        asked.tell(again.of(name))
    assert [trial.state for trial in again.store.trials()] == [State.REACHED] * 3


def test_code_is_remembered_for_whoever_goes_on(tmp_path: Path) -> None:
    store = StudyStore.create(tmp_path, study())
    assert store.code(None) == {}
    assert store.code({"working_dir": "/a"}) == {"working_dir": "/a"}
    assert StudyStore.open(tmp_path, store.id).code({}) == {"working_dir": "/a"}


# Axes of pictures


def test_every_value_of_a_dimension_has_a_place_on_its_axis() -> None:
    words = Scale.of(Dimension(choice=("topk", "onebit", "int8")))
    assert [words.place(word) for word in ("topk", "onebit", "int8")] == [0.0, 0.5, 1.0]
    log = Scale.of(Dimension(low=0.001, high=0.1, log=True))
    assert log.place(0.01) == pytest.approx(0.5)
    assert [text for _, text in log.ticks] == ["0.001", "0.1"]
    assert [text for _, text in Scale.of(Dimension(low=0, high=16, whole=True)).ticks] == ["0", "16"]
    assert Scale.around([0.9, 0.9]).place(0.9) == 0.5, "all alike"
    assert Scale.around([1e3, 1e5], is_log=True).place(1e4) == pytest.approx(0.5)
    assert not Scale.around([0.0, 1.0], is_log=True).is_log

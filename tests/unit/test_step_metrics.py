"""How reports become a step's metrics: as the registry says, whatever a report lacks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from raysync.address import COORDINATOR, Address, worker
from raysync.engine import messages as m
from raysync.engine.coordinator import Coordinator
from raysync.engine.coordinator.combining import evaluation
from raysync.engine.coordinator.step_metrics import StepMetrics
from raysync.engine.effects import Send
from raysync.metrics import METRICS, Combine, Metric
from raysync.spec import parse_spec
from raysync.sync.base import Choice
from tests.jobs import job

FULL = {
    "train/loss": 2.0,
    "train/samples": 8.0,
    "comm/bytes_up": 100.0,
    "comm/bytes_down": 50.0,
    "comm/dense_bytes": 600.0,
    "feedback/residual_norm": 3.0,
    "time/compute_s": 0.5,
}
OTHER = {**FULL, "train/loss": 5.0, "train/samples": 24.0, "feedback/residual_norm": 4.0, "time/compute_s": 0.1}
FOLLOWS = {
    "train/samples": {"train/loss"},
    "comm/bytes_up": {"comm/compression"},
    "comm/bytes_down": {"comm/compression"},
    "comm/dense_bytes": {"comm/compression"},
}
"""What else is made of a number."""


def books(registry: Sequence[Metric] = METRICS) -> StepMetrics:
    return StepMetrics(parse_spec({"task": {"kind": "digits"}}), registry)


def reports(*metrics: dict[str, float]) -> dict[Address, m.Report]:
    """Return reports by worker."""
    found = (m.Report(view=1, sender=worker(n), step=0, values=(), metrics=told) for n, told in enumerate(metrics))
    return {report.sender: report for report in found}


def test_each_is_combined_as_the_registry_says() -> None:
    told = books().metrics(reports(FULL, OTHER), 1.0)
    assert told == {
        "train/loss": (2.0 * 8 + 5.0 * 24) / 32,
        "train/samples": 32.0,
        "comm/bytes_up": 200.0,
        "comm/bytes_down": 100.0,
        "comm/compression": 1200 / 300,
        "feedback/residual_norm": 5.0,
        "feedback/lost_norm": 0.0,
        "time/compute_s": 0.3,
        "sync/lssr": 0.0,
        "sync/rounds": 0.0,
    }


def judged(part: int, parts: int, samples: int, round: int = 3, **metrics: float) -> m.Judgement:
    return m.Judgement(round, part, parts, samples, {f"eval/{name}": value for name, value in metrics.items()})


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([], {}),
        ([judged(0, 1, 40, loss=0.25, bleu=0.4)], {"eval/loss": 0.25, "eval/bleu": 0.4, "eval/round": 3.0}),
        ([judged(1, 2, 30, loss=1.0), judged(0, 2, 10, loss=2.0)], {"eval/loss": 1.25, "eval/round": 3.0}),
        ([judged(0, 2, 40, loss=0.5), judged(1, 2, 0)], {"eval/loss": 0.5, "eval/round": 3.0}),
        ([judged(0, 2, 40, loss=0.5)], {}),
        ([judged(0, 2, 40, loss=0.5), judged(1, 3, 20, loss=0.5)], {}),
        ([judged(0, 2, 40, loss=0.5), judged(1, 2, 40, round=4, loss=0.5)], {}),
        ([judged(0, 1, 0)], {}),
    ],
    ids=["none", "whole", "weighted", "empty part", "missing part", "another split", "another round", "no data"],
)
def test_an_evaluation_is_told_once_every_part_of_it_is_there(
    parts: list[m.Judgement], expected: dict[str, float]
) -> None:
    assert evaluation(parts) == expected
    told = {
        worker(n): m.Report(view=1, sender=worker(n), step=0, values=(), metrics=FULL, judged=part)
        for n, part in enumerate(parts)
    }
    found = books().metrics(told, 1.0) if told else {}
    assert {name: value for name, value in found.items() if name.startswith("eval/")} == expected


@pytest.mark.parametrize("key", FULL)
def test_a_report_without_a_key_is_tolerated(key: str) -> None:
    less = {name: value for name, value in FULL.items() if name != key}
    whole, without = books().metrics(reports(FULL), 1.0), books().metrics(reports(less), 1.0)
    touched = {key} | FOLLOWS.get(key, set())
    assert {name: value for name, value in without.items() if name not in touched} == {
        name: value for name, value in whole.items() if name not in touched
    }
    assert key not in without
    beside = books().metrics(reports(less, OTHER), 1.0)
    assert beside.get(key) == books().metrics(reports(OTHER), 1.0).get(key), "the other report stands for both"


def test_an_empty_report_leaves_totals_as_they_were() -> None:
    found = books()
    found.metrics(reports(FULL, OTHER), 1.0)
    told = found.metrics(reports({}, {}), 2.0)
    assert (told["comm/bytes_up"], told["feedback/residual_norm"]) == (200.0, 5.0)
    assert "train/loss" not in told


@pytest.mark.parametrize(
    ("combine", "expected"),
    [("mean", 3.0), ("sum", 6.0), ("max", 4.0), ("total", 6.0), ("norm", 20**0.5)],
)
def test_a_new_metric_is_an_entry_and_whoever_measures_it(combine: str, expected: float) -> None:
    metric = Metric(name="data/depth", combine=Combine(combine), text="How many batches wait.")
    told = reports({"data/depth": 2.0}, {"data/depth": 4.0})
    assert "data/depth" not in books().metrics(told, 1.0), "an unknown one is not told"
    found = books((*METRICS, metric))
    assert found.metrics(told, 1.0)["data/depth"] == expected
    before = books()
    before.metrics(reports(FULL), 1.0)
    found.load_state_dict(before.state_dict())
    assert found.metrics(told, 2.0)["data/depth"] == expected, "also in a job that goes on from before it was known"


def test_the_residual_of_a_worker_that_died_is_lost_and_what_it_sent_still_counts() -> None:
    found = books()
    told = reports(FULL, OTHER)
    found.metrics(told, 1.0)
    found.decided(0, Choice(True, "all do"))
    found.died([*told][1])
    again = books()
    again.load_state_dict(found.state_dict())
    for one in (found, again):
        rest = one.metrics(reports(FULL), 2.0)
        assert (rest["feedback/residual_norm"], rest["feedback/lost_norm"]) == (3.0, 4.0)
        assert (rest["comm/bytes_up"], rest["sync/rounds"]) == (200.0, 1.0)
        assert all(math.isfinite(value) for value in rest.values())


def test_a_decision_leaves_before_the_books_of_it_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers wait for the decision, no core waits for the metrics; with a target the next decision depends on them."""
    written: list[int] = []
    metrics = StepMetrics.metrics

    def noting(books: StepMetrics, reports: Any, now_s: float) -> dict[str, float]:
        written.append(next(iter(reports.values())).step)
        return metrics(books, reports, now_s)

    monkeypatch.setattr(StepMetrics, "metrics", noting)
    strategy = {"kind": "selsync", "delta": 0.3}
    core = Coordinator(COORDINATOR, job(strategy, scale={"workers": 2}))
    for index in range(2):
        core.handle(m.Join(sender=worker(index), num_samples=100, num_elements=10))
    for step in range(3):
        told = [m.Report(view=1, sender=worker(index), step=step, values=(0.1,), metrics={}) for index in range(2)]
        effects = [effect for report in told for effect in core.handle(report)]
        assert [type(effect.message) for effect in effects if isinstance(effect, Send)] == [m.Decision] * 2
        assert written == [*range(step)], "what it rests on is written later"
        core.settle()
        assert written == [*range(step + 1)]

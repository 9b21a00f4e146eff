"""Knobs: a turn makes a new valid job or is refused whole."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from raysync.errors import KnobConflict, KnobError
from raysync.knobs import apply_knobs, initial_knobs, turn
from raysync.spec import JobSpec, parse_spec


def _job(**changes: Any) -> JobSpec:
    return parse_spec(
        {"task": {"kind": "digits"}, "scale": {"workers": 4, "min_workers": 2, "max_workers": 6}, **changes}
    )


@pytest.mark.parametrize(
    ("strategy", "knobs"),
    [
        ({"kind": "bsp"}, set()),
        ({"kind": "selsync"}, {"delta", "straggler_deadline"}),
        ({"kind": "selsync", "signal": {"kind": "random", "rate": 0.1}}, {"straggler_deadline"}),
        ({"kind": "ssp"}, {"staleness_bound"}),
        ({"kind": "local_sgd"}, {"sync_every"}),
        ({"kind": "fedavg"}, {"sync_every"}),
        ({"kind": "async_sparse"}, {"ema_beta", "sparse_fraction", "staleness_bound"}),
    ],
)
def test_job_has_the_knobs_of_its_strategy(strategy: dict[str, Any], knobs: set[str]) -> None:
    assert set(initial_knobs(_job(strategy=strategy)).values) == knobs | {"limit_mbit", "lr", "pause", "workers"}


def test_codecs_with_a_ratio_have_a_knob() -> None:
    job = _job(compression={"push": {"kind": "topk", "ratio": 0.01}, "pull": {"kind": "onebit"}})
    assert initial_knobs(job).values["push_ratio"] == 0.01
    assert "pull_ratio" not in initial_knobs(job).values


def test_turn_makes_the_job_it_says() -> None:
    job = _job(strategy={"kind": "selsync", "delta": 0.3})
    knobs = turn(job, initial_knobs(job), {"delta": 0.7, "lr": 0.02})
    assert (knobs.version, knobs.values["delta"]) == (1, 0.7)
    effective = apply_knobs(job, knobs)
    assert (effective.strategy.delta, effective.optimizer.lr) == (0.7, 0.02)
    assert turn(job, knobs, {"delta": 0.3, "lr": job.optimizer.lr}).values == initial_knobs(job).values


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"delta": -1}, "greater than or equal to 0"),
        ({"delta": float("nan")}, "greater than or equal to 0"),
        ({"staleness_bound": 2}, "it has delta, limit_mbit, lr, pause, straggler_deadline, workers"),
        ({"workers": 7}, "from min_workers=2 to max_workers=6"),
        ({"workers": 2.5}, "whole number"),
        ({"workers": True}, "whole number"),
        ({"pause": 1}, "true or false"),
        ({"lr": 0}, "greater than 0"),
        ({"lr": "fast"}, "valid number"),
        ({"delta": 0.5, "lr": -1}, "greater than 0"),
        ({}, "at least one knob"),
    ],
)
def test_turn_is_refused_whole(changes: dict[str, Any], remedy: str) -> None:
    job = _job(strategy={"kind": "selsync"})
    with pytest.raises(KnobError) as caught:
        turn(job, initial_knobs(job), changes)
    assert remedy in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_turn_into_instability_is_refused() -> None:
    job = _job(strategy={"kind": "async_sparse", "sparse_fraction": 0.05})
    with pytest.raises(KnobError, match="ema_beta"):
        turn(job, initial_knobs(job), {"sparse_fraction": 0.4})


def test_conflicting_turn_is_refused() -> None:
    job = _job()
    knobs = turn(job, initial_knobs(job), {"lr": 0.01}, expected_version=0)
    with pytest.raises(KnobConflict, match="version 1, not 0"):
        turn(job, knobs, {"lr": 0.02}, expected_version=0)

"""Real training: handwritten digits with four workers."""

from __future__ import annotations

from typing import Any

import pytest

from raysync.sim import Simulation
from tests.jobs import job, workload

DIGITS: dict[str, Any] = {
    "task": {"kind": "digits"},
    "optimizer": {"kind": "sgd", "lr": 0.1, "momentum": 0.9},
    "data": {"batch_size": 32},
    "budget": {"steps": 400},
    "eval": {"every": 50},
    "seed": 7,
    "scale": {"workers": 4, "shards": 2, "block_bytes": 65536},
}


def _accuracy(strategy: dict[str, Any], **changes: Any) -> tuple[float, float]:
    spec = job(strategy, **{**DIGITS, **changes})
    result = Simulation(spec, workload=workload(spec)).run()
    return result.metrics["eval/accuracy"], result.lssr


def test_bsp_and_selsync_learn_digits() -> None:
    bsp, _ = _accuracy({"kind": "bsp"})
    assert bsp >= 0.96
    selsync, lssr = _accuracy({"kind": "selsync", "delta": 0.3})
    assert selsync >= bsp - 0.005
    assert lssr >= 0.5


@pytest.mark.parametrize("aggregate", ["parameters", "gradients"])
def test_seldp_beats_defdp_under_label_skew(aggregate: str) -> None:
    """The largest effect in the SelSync paper is data placement: rotated chunks show every label to every worker."""
    strategy = {"kind": "selsync", "delta": 0.3, "aggregate": aggregate}
    seldp, defdp = (
        _accuracy(
            strategy,
            optimizer={"kind": "sgd", "lr": 0.05},
            data={"batch_size": 32, "partition": partition, "label_skew": 1.0},
        )[0]
        for partition in ("seldp", "defdp")
    )
    assert seldp > defdp + 0.05


@pytest.mark.parametrize(
    "strategy",
    [{"kind": "ssp"}, {"kind": "fedavg"}, {"kind": "local_sgd"}, {"kind": "diloco", "sync_every": 20}],
    ids=lambda s: s["kind"],
)
def test_other_strategies_learn_digits(strategy: dict[str, Any]) -> None:
    assert _accuracy(strategy, optimizer={"kind": "sgd", "lr": 0.05, "momentum": 0.9})[0] >= 0.94

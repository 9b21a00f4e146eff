"""What SelSync's defaults are worth: `delta: auto` against thresholds chosen by hand, and against even spacing at equal rate.

In the simulator at 100 Mbit/s with real gradients, onebit both ways; `python -m tests.bench defaults [SEED ...]`. The
seeds it runs without being told were not used to choose anything.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from raysync.sim import SimResult, Simulation
from raysync.spec import JobSpec, parse_spec
from raysync.tasks.workload import Workload
from tests.bench.record import record
from tests.bench.simulated import NETWORK, PACE
from tests.mnist_like import write_mnist_like

SEEDS = (101, 102, 103)
DELTAS = (0.05, 0.1, 0.2, 0.3)
ONEBIT = {"push": {"kind": "onebit"}, "pull": {"kind": "onebit"}}
AUTO: dict[str, Any] = {"kind": "selsync"}


class Case(NamedTuple):
    """A task and what it is to reach."""

    fields: dict[str, Any]
    metric: str
    target: float
    """Reached by every setting worth having, well before the last step."""


def cases(folder: Path) -> dict[str, Case]:
    """Return the tasks; images are written into a folder."""
    images = str(write_mnist_like(folder))
    sgd = {"kind": "sgd", "lr": 0.05, "momentum": 0.9}
    digits = {"task": {"kind": "digits"}, "optimizer": sgd, "budget": {"steps": 400}}
    mnist = {"task": {"kind": "mnist", "folder": images}, "optimizer": sgd, "budget": {"steps": 500}}
    skewed = {"data": {"batch_size": 32, "label_skew": 0.8}}
    text = {
        "task": {"kind": "char_lm", "width": 32, "depth": 1, "context": 32, "corpus_bytes": 200_000},
        "optimizer": {"kind": "adamw", "lr": 0.004},
        "budget": {"steps": 300},
    }
    return {
        "digits": Case(digits, "eval/accuracy", 0.94),
        "digits, skewed": Case({**digits, **skewed}, "eval/accuracy", 0.92),
        "mnist-like": Case(mnist, "eval/accuracy", 0.9),
        "mnist-like, skewed": Case({**mnist, **skewed}, "eval/accuracy", 0.85),
        "char_lm": Case(text, "eval/loss", 2.7),
    }


def job(case: Case, strategy: dict[str, Any], seed: int) -> JobSpec:
    """Return a case's job."""
    common = {
        "compression": ONEBIT,
        "lr_schedule": {"kind": "cosine"},  # so that ends can be compared: at a constant rate they swing by points
        "scale": {"workers": 4},
        "eval": {"every": 10},
        "data": {"batch_size": 32},
    }
    return parse_spec({**common, **case.fields, "strategy": strategy, "seed": seed})


def main() -> int:
    """Print a line for every case: the final quality beside even spacing, the time to target beside hand-chosen thresholds."""
    seeds = [int(argument) for argument in sys.argv[1:] if argument.isdecimal()] or list(SEEDS)
    with tempfile.TemporaryDirectory() as folder:
        for name, case in cases(Path(folder)).items():
            _measure(name, case, seeds)
    return 0


def _measure(name: str, case: Case, seeds: list[int]) -> None:
    workload = Workload(job(case, AUTO, 0).task.build())
    steps = case.fields["budget"]["steps"]

    def run(strategy: dict[str, Any], seed: int) -> SimResult:
        spec = job(case, strategy, seed)
        return Simulation(spec, network=NETWORK, pace=PACE, workload=workload).run()

    auto = {seed: run(AUTO, seed) for seed in seeds}
    even = {seed: run(_even(auto[seed].rounds / steps), seed) for seed in seeds}
    by_hand = {delta: {seed: run({"kind": "selsync", "delta": delta}, seed) for seed in seeds} for delta in DELTAS}
    times = {f"delta {delta}": _time_s(case, found) for delta, found in by_hand.items()}
    own_s, reached = _time_s(case, auto), [time_s for time_s in times.values() if time_s is not None]
    best_s = min(reached) if reached else None
    record(
        "defaults",
        case=name,
        seeds=seeds,
        metric=case.metric,
        auto=_final(case, auto),
        even=_final(case, even),
        auto_rate=statistics.mean(result.rounds / steps for result in auto.values()),
        even_rate=statistics.mean(result.rounds / steps for result in even.values()),
        by_hand={f"delta {delta}": round(_final(case, found), 4) for delta, found in by_hand.items()},
        target=case.target,
        auto_s=own_s,
        by_hand_s={label: time_s and round(time_s, 2) for label, time_s in times.items()},
        over_best=own_s / best_s if own_s is not None and best_s is not None else None,
    )


def _even(rate: float) -> dict[str, Any]:
    return {"kind": "selsync", "signal": {"kind": "fixed", "rate": rate}, "warmup_steps": 0}


def _final(case: Case, results: Mapping[int, SimResult]) -> float:
    return statistics.mean(result.metrics[case.metric] for result in results.values())


def _time_s(case: Case, results: Mapping[int, SimResult]) -> float | None:
    """Return the mean virtual time to the target; None if one run never reached it."""
    is_loss = case.metric.endswith("loss")
    times = []
    for result in results.values():
        found = [(time_s, told[case.metric]) for time_s, _, told in result.eval_times if case.metric in told]
        times.append(
            next((t for t, value in found if (value <= case.target if is_loss else value >= case.target)), None)
        )
    return None if None in times else statistics.mean(time_s for time_s in times if time_s is not None)


if __name__ == "__main__":
    sys.exit(main())

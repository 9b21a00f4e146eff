"""What `landing: late` costs and saves: accuracy and virtual time beside `landing: wait`, in the simulator with real gradients.

The parameter server is so far away that a round takes eight steps; decisions are made near by. `python -m tests.bench
landing [SEED ...]`
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from raysync.sim import Network, Pace, SimResult, Simulation
from raysync.tasks.workload import Workload
from tests.bench.defaults import Case, cases, job
from tests.bench.record import record

SEEDS = (101, 102, 103)
STEP_S = 0.02
NETWORK = Network(bandwidth_bits_per_s=100e6, latencies_s={f"shard/{slot}": 0.08 for slot in range(2)}, has_lanes=True)
STRATEGIES: dict[str, dict[str, Any]] = {
    "local_sgd 8": {"kind": "local_sgd", "sync_every": 8},
    "selsync": {"kind": "selsync", "overlap": True},
    "diloco 20": {"kind": "diloco", "sync_every": 20},
}
TASKS = ("digits", "char_lm")
BAR = 0.5
"""Points of accuracy that landing late may cost."""


def main() -> int:
    """Print a line for every task and strategy; 1 if landing late cost more than half a point anywhere."""
    torch.set_num_threads(1)
    seeds = [int(argument) for argument in sys.argv[1:] if argument.isdecimal()] or list(SEEDS)
    with tempfile.TemporaryDirectory() as folder:
        found = cases(Path(folder))
        worst = max(_measure(task, found[task], label, seeds) for task in TASKS for label in STRATEGIES)
    return int(worst > BAR)


def _measure(task: str, case: Case, label: str, seeds: list[int]) -> float:
    """Return how many points landing late cost."""
    strategy = STRATEGIES[label]
    workload = Workload(job(case, strategy, 0).task.build())
    results = {
        landing: [_run(case, {**strategy, "landing": landing}, seed, workload) for seed in seeds]
        for landing in ("wait", "late")
    }
    accuracy = {landing: 100 * _mean(found, "eval/accuracy") for landing, found in results.items()}
    time_s = {landing: statistics.mean(r.virtual_time_s for r in found) for landing, found in results.items()}
    record(
        "landing",
        task=task,
        strategy=label,
        seeds=seeds,
        accuracy=accuracy,
        points_lost=accuracy["wait"] - accuracy["late"],
        bar=BAR,
        loss={landing: _mean(found, "eval/loss") for landing, found in results.items()},
        virtual_s=time_s,
        bare_s=case.fields["budget"]["steps"] * STEP_S,
        rounds={landing: statistics.mean(r.rounds for r in found) for landing, found in results.items()},
        staleness=statistics.mean(result.staleness_mean for result in results["late"]),
    )
    return accuracy["wait"] - accuracy["late"]


def _run(case: Case, strategy: dict[str, Any], seed: int, workload: Workload) -> SimResult:
    spec = job(case._replace(fields={**case.fields, "eval": {"every": 100}}), strategy, seed)
    return Simulation(spec, network=NETWORK, pace=Pace(step_s=STEP_S), workload=workload).run()


def _mean(results: list[SimResult], name: str) -> float:
    return statistics.mean(result.metrics[name] for result in results)


if __name__ == "__main__":
    sys.exit(main())

"""How long a user waits: from `fit` on a running Ray to the first step, and for a FedAvg round."""

from __future__ import annotations

import statistics
import time
from itertools import pairwise

from raysync.events import Decision
from raysync.spec import parse_spec
from tests.bench.local_ray import local_ray, run
from tests.bench.record import record

REPEATS = 3


def main() -> int:
    """Measure and print."""
    with local_ray(2) as storage:
        time.sleep(3.0)  # Ray's own processes have come up
        times = []
        for _ in range(REPEATS):
            spec = parse_spec({"task": {"kind": "digits"}, "scale": {"workers": 2}, "budget": {"steps": 300}})
            called_s = time.time()
            result = run(spec, storage)
            firsts = [facts["first_step_s"] for facts in result.runs.actors.values() if facts.get("first_step_s")]
            times.append(max(firsts) - called_s)
        record("startup.first_step", median_s=statistics.median(times), worst_s=max(times), bar_s=6.0)
        _first_steps(storage)
        spec = parse_spec(
            {
                "task": {"kind": "digits", "hidden": [600, 560]},
                "strategy": {"kind": "fedavg", "sync_every": 20},
                "scale": {"workers": 2},
                "budget": {"steps": 20 * 40},
                "eval": {"every": 10**9},
            }
        )
        result = run(spec, storage)
        told = [(event.time_s, event.body) for event in result.records()]
        decided = [time_s for time_s, body in told if isinstance(body, Decision) and body.sync][8:]
        rounds = [after - before for before, after in pairwise(decided)]
        elements = sum(parameter.numel() for parameter in spec.task.build().model().parameters())
        record("startup.fedavg_round", parameters=elements, median_s=statistics.median(rounds), bar_s=0.1)
    return 0


def _first_steps(storage: str) -> None:
    """Whether the first hundred steps take longer than the next: what a codec needs is there before them."""
    onebit = {"push": {"kind": "onebit"}, "pull": {"kind": "onebit"}}
    ratios, firsts = [], []
    for _ in range(REPEATS):
        spec = parse_spec(
            {
                "task": {"kind": "digits", "hidden": [256]},
                "strategy": {"kind": "bsp"},
                "compression": onebit,
                "scale": {"workers": 2},
                "budget": {"steps": 201},
                "eval": {"every": 10**9},
            }
        )
        at_s = {e.step: e.time_s for e in run(spec, storage).records() if isinstance(e.body, Decision)}
        first_s, next_s = at_s[100] - at_s[0], at_s[200] - at_s[100]
        ratios.append(first_s / next_s)
        firsts.append(first_s)
    record("startup.first_steps", first_100_s=statistics.median(firsts), ratio=statistics.median(ratios), bar=1.2)

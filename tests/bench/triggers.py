"""Does the timing matter? SelSync's trigger against random and evenly spaced ones that fire equally often, and
against FDA's.
"""

from __future__ import annotations

import sys

from raysync.tasks.workload import Workload
from tests.bench.record import record
from tests.bench.simulated import STEPS, digits_job, simulate


def main() -> int:
    """Print accuracy, LSSR and virtual time of each trigger, three seeds each."""
    workload = Workload(digits_job({"kind": "bsp"}).task.build())
    for seed in (7, 8, 9):
        reference = simulate(digits_job({"kind": "selsync", "delta": 0.3}, seed=seed), workload)
        rate = reference.rounds / STEPS
        controls = {
            "random": {"kind": "selsync", "signal": {"kind": "random", "rate": rate}, "warmup_steps": 0},
            "fixed": {"kind": "selsync", "signal": {"kind": "fixed", "rate": rate}, "warmup_steps": 0},
            "divergence": {"kind": "selsync", "signal": {"kind": "divergence"}, "delta": 0.1, "target_lssr": 1 - rate},
        }
        results = {"grad_change": reference} | {
            name: simulate(digits_job(s, seed=seed), workload) for name, s in controls.items()
        }
        for trigger, result in results.items():
            facts = {
                "accuracy": result.metrics["eval/accuracy"],
                "eval_loss": result.metrics["eval/loss"],
                "lssr": result.lssr,
            }
            record("triggers", trigger=trigger, seed=seed, **facts, virtual_time_s=result.virtual_time_s)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""SelDP against DefDP when the data arrives sorted by label: who sees which samples, nothing else, differs."""

from __future__ import annotations

import sys
from typing import Any

from raysync.tasks.workload import Workload
from tests.bench.record import record
from tests.bench.simulated import digits_job, simulate

SGD = {"kind": "sgd", "lr": 0.05}
MOMENTUM = {"kind": "sgd", "lr": 0.1, "momentum": 0.9}

SETTINGS: dict[str, dict[str, Any]] = {
    "averaging parameters, sgd, skew 0.8": {"optimizer": SGD, "skew": 0.8},
    "averaging parameters, sgd, skew 1": {"optimizer": SGD, "skew": 1.0},
    "averaging gradients, sgd, skew 0.8": {"optimizer": SGD, "skew": 0.8, "aggregate": "gradients"},
    "averaging gradients, sgd, skew 1": {"optimizer": SGD, "skew": 1.0, "aggregate": "gradients"},
    "averaging parameters, momentum 0.9, skew 0.8": {"optimizer": MOMENTUM, "skew": 0.8},
    "averaging parameters, momentum 0.9, skew 1": {"optimizer": MOMENTUM, "skew": 1.0},
}


def measure(label: str, partition: str, workload: Workload, seed: int = 7) -> dict[str, float]:
    """Return final accuracy and LSSR of SelSync (delta 0.3) under one setting and partition."""
    setting = SETTINGS[label]
    spec = digits_job(
        {"kind": "selsync", "delta": 0.3, "aggregate": setting.get("aggregate", "parameters")},
        optimizer=setting["optimizer"],
        data={"batch_size": 32, "partition": partition, "label_skew": setting["skew"]},
        eval={"every": 100},
        seed=seed,
    )
    result = simulate(spec, workload)
    return {"accuracy": result.metrics["eval/accuracy"], "lssr": result.lssr}


def main() -> int:
    """Print one line per setting, partition and seed."""
    workload = Workload(digits_job({"kind": "bsp"}).task.build())
    for label in SETTINGS:
        for seed in (7, 8, 9):
            for partition in ("seldp", "defdp"):
                record(
                    "placement",
                    setting=label,
                    partition=partition,
                    seed=seed,
                    **measure(label, partition, workload, seed),
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A mesh of 4 stages x 2 replicas on `char_lm` (about 1M parameters), in the simulator: the asynchronous mesh against the
synchronous one on equal samples, and each of its parts left out in turn.

The asynchronous mesh steps after every microbatch of 8 samples. `synchronous` has the same microbatches and steps after four
of them, as a pipeline of four stages has to; `synchronous, small steps` steps after every 8 samples too, cut into
microbatches of 2.

    python -m tests.bench mesh [--steps=400] [--seeds=1,2,3] [--only=name,...]

Pipelines are 50 ms apart from the parameter server, about three steps. What is compared is the loss of the final model.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch

from raysync.sim import Network, Pace, Simulation
from raysync.spec import parse_spec
from raysync.tasks.workload import Workload
from tests.bench.record import record

LR = 2e-3
"""The best of 1, 2 and 4 thousandths for small steps, on a seed that is not among the three."""
LARGE_LR = 8e-3
"""The best of 2, 4, 8, 12 and 16 thousandths for large steps, on the same seed."""
MICROBATCH = 8
LATE = {"kind": "async_one_f_one_b", "correct_lr_steps": 400}
SPARSE = {"kind": "async_sparse", "sparse_fraction": 0.05, "staleness_bound": 15, "ema_hold_steps": 200}
LOOKAHEAD = {"kind": "lookahead", "lr": LR, "beta1": 0.9}
"""A momentum of 0.99 needs longer runs than these; 0.95 was worse on a seed that is not among the three."""
ADAMW = {"kind": "adamw", "lr": LR}
ROWS: dict[str, dict[str, Any]] = {
    "synchronous": {
        "schedule": {"kind": "gpipe"},
        "strategy": {"kind": "bsp"},
        "optimizer": {"kind": "adamw", "lr": LARGE_LR},
        "data": {"batch_size": 4 * MICROBATCH},
    },
    "synchronous, small steps": {"schedule": {"kind": "gpipe"}, "strategy": {"kind": "bsp"}, "optimizer": ADAMW},
    "asynchronous": {"schedule": LATE, "strategy": SPARSE, "optimizer": LOOKAHEAD},
    "stale adamw": {"schedule": LATE, "strategy": SPARSE, "optimizer": ADAMW},
    "overwrite": {"schedule": LATE, "strategy": {**SPARSE, "landing": "overwrite"}, "optimizer": LOOKAHEAD},
    "int8 activations": {
        "schedule": {**LATE, "activations": {"kind": "int8"}, "gradients": {"kind": "int8"}},
        "strategy": SPARSE,
        "optimizer": LOOKAHEAD,
    },
}
_HOSTS = {"coordinator": "server", "shard/0": "server", **{f"shard/{stage}/0": "server" for stage in (1, 2, 3)}}


def main() -> int:
    """Run every row with every seed."""
    options = dict(argument.removeprefix("--").split("=") for argument in sys.argv[1:] if "=" in argument)
    steps = int(options.get("steps", 400))
    seeds = [int(seed) for seed in options.get("seeds", "1,2,3").split(",")]
    names = options["only"].split(",") if "only" in options else list(ROWS)
    torch.set_num_threads(2)
    for seed in seeds:
        for name in names:
            record("mesh", row=name, seed=seed, steps=steps, **measure(ROWS[name], seed, steps))
    return 0


def measure(row: dict[str, Any], seed: int, steps: int) -> dict[str, float]:
    """Return what a job comes to on as many samples as `steps` microbatches have."""
    steps = steps * MICROBATCH // row.get("data", {}).get("batch_size", MICROBATCH)
    spec = parse_spec(
        {
            "task": {"kind": "char_lm", "width": 128, "depth": 5, "context": 32, "corpus_bytes": 200_000},
            "scale": {"workers": 2, "stages": 4},
            "data": {"batch_size": MICROBATCH},
            "budget": {"steps": steps},
            "lr_schedule": {"kind": "cosine", "warmup_steps": steps // 10},
            "eval": {"every": steps},
            "seed": seed,
            **row,
        }
    )
    network = Network(bandwidth_bits_per_s=1e9, latency_s=0.001, hosts=_HOSTS, latencies_s={"server": 0.05})
    simulation = Simulation(spec, workload=Workload(spec.task.build()), network=network, pace=Pace())
    started_s = time.perf_counter()
    result = simulation.run()
    told = [event.data for event in simulation.ledger.events if event.kind == "metrics"]
    final = next(data for data in reversed(told) if "eval/loss" in data)
    last = next(data for data in reversed(told) if "comm/bytes_up" in data)
    return {
        "eval_loss": final["eval/loss"],
        "virtual_s": result.virtual_time_s,
        "took_s": time.perf_counter() - started_s,
        "mb_between_replicas": (last["comm/bytes_up"] + last["comm/bytes_down"]) / 1e6,
        "of_full_averaging": 1 / last["comm/compression"],
        "mb_activations": last["pipeline/activation_bytes"] / 1e6,
        "delay_sparse": last.get("sparse/delay", 0.0),
        "delay_stage": last["pipeline/delay"],
    }


if __name__ == "__main__":
    main()

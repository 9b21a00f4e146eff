"""Peak memory of a worker and of a shard, as multiples of the fp32 bytes they own, beyond what plain training needs."""

from __future__ import annotations

import resource
from typing import Any

import torch

from raysync.spec import parse_spec
from tests.bench.local_ray import local_ray, run
from tests.bench.record import record

ELEMENTS = 25_000_000
CASES: dict[str, dict[str, Any]] = {
    "bsp dense": {"strategy": {"kind": "bsp"}},
    "selsync dense": {"strategy": {"kind": "selsync", "delta": 0.0}},
    "selsync onebit": {
        "strategy": {"kind": "selsync", "delta": 0.0},
        "compression": {"push": {"kind": "onebit"}, "pull": {"kind": "onebit"}},
    },
}


def main() -> int:
    """Measure and print."""
    plain = _plain_bytes()
    with local_ray(4) as storage:
        for name, fields in CASES.items():
            task = {"kind": "custom", "entrypoint": "tests.bench.rounds:Still", "args": {"elements": ELEMENTS}}
            scale = {"workers": 2, "shards": 1}
            spec = parse_spec(
                {
                    "task": task,
                    "scale": scale,
                    "budget": {"steps": 12},
                    "eval": {"every": 10**9},
                    "data": {"batch_size": 1},
                }
                | {"optimizer": {"kind": "sgd", "lr": 1e-6}, **fields}
            )
            actors = run(spec, storage).runs.actors
            owned = 4 * ELEMENTS
            workers = [f["peak_rss_bytes"] for n, f in actors.items() if n.startswith("worker/")]
            shard = actors["shard/0"]
            record(
                "memory",
                case=name,
                worker_ratio=(max(workers) - plain) / owned,
                worker_bar=4,
                shard_ratio=(shard["peak_rss_bytes"] - shard["built_rss_bytes"]) / owned,
                shard_bar=5,
            )
    return 0


def _plain_bytes() -> int:
    """Return the peak memory of a process that trains the same model alone."""
    import torch.multiprocessing as mp

    context = mp.get_context("spawn")
    answers = context.SimpleQueue()
    process = context.Process(target=_train_alone, args=(answers,))
    process.start()
    peak: int = answers.get()
    process.join()
    return peak


def _train_alone(answers: Any) -> None:
    import actors.shell.worker  # what a worker process imports  # noqa: F401
    import raysync.engine.worker  # noqa: F401
    from tests.bench.rounds import Still

    torch.set_num_threads(1)
    task = Still(ELEMENTS)
    model = task.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for _ in range(5):
        optimizer.zero_grad()
        task.loss(model, None).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    answers.put(1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)

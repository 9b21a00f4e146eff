"""What a decision and an update round cost on the direct link, beside gloo's all-reduce with as many processes.

Both are measured in one run, gloo before and after; what counts are the ratios.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tests.bench.record import record

SIZES_MB = (1, 10, 40)
BARS = {"decision": 0.6, 1: 1.2, 10: 2.0, 40: 2.0}


class Still:
    """A task that computes next to nothing on a vector of a given size."""

    def __init__(self, elements: int) -> None:
        self._elements = elements

    def model(self) -> nn.Module:
        """Return a module with one flat parameter."""
        module = nn.Module()
        module.vector = nn.Parameter(torch.zeros(self._elements))
        return module

    def train_data(self) -> TensorDataset:
        """Return samples nobody looks at."""
        return TensorDataset(torch.zeros(1024, 1))

    eval_data = train_data

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return a loss whose gradient is one everywhere."""
        vector = model.vector
        assert isinstance(vector, Tensor)
        return vector.sum()


def main() -> int:
    """Measure and print; the last line says which bars were missed."""
    import logging

    import ray

    from actors import fit

    ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    missed = []
    try:
        with tempfile.TemporaryDirectory() as storage:
            for workers in (2, 4):
                for what in ("decision", *SIZES_MB):
                    elements = 1 if what == "decision" else int(what) * 262_144
                    before_s = gloo_s(workers, elements)
                    ours_s, runs = _ours_s(fit, workers, what, elements, storage)
                    gloo = statistics.median((before_s, gloo_s(workers, elements)))
                    ratio = ours_s / gloo
                    missed += [f"{what} N={workers}: {ratio:.2f} > {BARS[what]}"] if ratio > BARS[what] else []
                    record(
                        "rounds", what=what, workers=workers, ours_ms=1e3 * ours_s, gloo_ms=1e3 * gloo, ratio=ratio,
                        bar=BARS[what], link=runs["link"],
                    )  # fmt: skip
    finally:
        ray.shutdown()
    record("rounds.missed", missed=missed)
    return 0


def _ours_s(fit: Any, workers: int, what: Any, elements: int, storage: str) -> tuple[float, dict[str, Any]]:
    """Return the median time from the end of the computation to the decision, or to the end of the round."""
    from raysync.spec import parse_spec

    decision = what == "decision"
    steps = 600 if decision else 300 if what == 1 else 80
    spec = parse_spec(
        {
            "task": {
                "kind": "custom",
                "entrypoint": "tests.bench.rounds:Still",
                "args": {"elements": max(16, elements)},
            },
            "strategy": {"kind": "local_sgd", "sync_every": steps} if decision else {"kind": "bsp"},
            "optimizer": {"kind": "sgd", "lr": 1e-6},
            "data": {"batch_size": 1},
            "scale": {"workers": workers, "shards": 1 if decision else workers, "shards_in": "workers"},
            "budget": {"steps": steps},
            "eval_every": 10**9,
            "transport": "direct",
        }
    )
    if decision:  # a strategy that waits for every decision and never fires
        spec = parse_spec({**spec.model_dump(), "strategy": {"kind": "selsync", "delta": 1e30, "warmup_steps": 0}})
    result = fit(spec, storage_path=storage)
    if result.error is not None:
        raise result.error
    names = ("sync/wait_s",) if decision else ("time/encode_s", "time/sync_s", "sync/wait_s")
    steps_s = [
        sum(r.data.get(name, 0.0) for name in names)
        for r in result.records()
        if r.kind == "metrics" and r.step > steps // 5 and "time/compute_s" in r.data
    ]
    return statistics.median(steps_s), result.runs


def gloo_s(workers: int, elements: int) -> float:
    """Return the median time of an all-reduce over so many processes."""
    import torch.multiprocessing as mp

    with tempfile.TemporaryDirectory() as folder:
        context = mp.get_context("spawn")
        answers = context.SimpleQueue()
        processes = [
            context.Process(target=_gloo_worker, args=(rank, workers, elements, folder, answers))
            for rank in range(workers)
        ]
        for process in processes:
            process.start()
        times = [answers.get() for _ in processes]
        for process in processes:
            process.join()
    return statistics.median(times)


def _gloo_worker(rank: int, workers: int, elements: int, folder: str, answers: Any) -> None:
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{Path(folder) / 'store'}", rank=rank, world_size=workers)
    vector = torch.ones(elements)
    repeats = 600 if elements == 1 else 300 if elements < 1_000_000 else 60
    times = []
    for _ in range(repeats):
        started_s = time.perf_counter()
        dist.all_reduce(vector)
        times.append(time.perf_counter() - started_s)
        vector.fill_(1.0)
    answers.put(statistics.median(times[repeats // 5 :]))
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())

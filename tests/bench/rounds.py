"""What a decision and an update round cost on the direct link, beside gloo's all-reduce with as many processes.

python -m tests.bench.rounds [2 10]    numbers of workers, then megabytes

Both are measured in one run; what counts are the ratios. Rounds are measured without and with a
backup of each shard.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from raysync.address import COORDINATOR, Address, worker
from raysync.spec import parse_spec
from tests.bench.local_ray import local_ray, run
from tests.bench.record import compare, record

SIZES_MB = (1, 10, 40)
CASES: tuple[tuple[str, int], ...] = (("identity", 0), ("identity", 1), ("onebit", 0))
"""Codec of both ways, backups of each shard."""
BARS = {"decision": 0.6, 1: 1.0, 10: 1.2, 40: 1.2, "onebit": 0.5}


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
    numbers = [int(word) for word in sys.argv[1:] if word.isdigit()]
    missed: list[str] = []
    with local_ray() as storage:
        for workers in numbers[:1] or (2, 4):
            if not numbers[1:]:
                missed += _compared("decision", workers, 1, decision_s(workers), BARS["decision"])
            for megabytes in numbers[1:] or SIZES_MB:
                for codec, replicas in CASES:
                    if codec == "onebit" and megabytes != 10:
                        continue
                    what = f"{megabytes} MB {codec}, {replicas} backups"
                    ours_s = _round_s(workers, megabytes, storage, codec, replicas)
                    bar = BARS["onebit" if codec == "onebit" else megabytes]
                    missed += _compared(what, workers, megabytes * 262_144, ours_s, bar)
    record("rounds.missed", missed=missed)
    return 0


def _compared(what: str, workers: int, elements: int, ours_s: float, bar: float) -> list[str]:
    """Set a time beside gloo's; return the bar if it was missed."""
    gloo = statistics.mean((gloo_s(workers, elements), gloo_s(workers, elements)))
    ratio = ours_s / gloo
    label = f"{what}, {workers} workers: ms, gloo's"
    compare("rounds", label, ours=1e3 * ours_s, rival=1e3 * gloo, goal=1 / bar, workers=workers)
    return [f"{what} N={workers}: {ratio:.2f} > {bar}"] if ratio > bar else []


def _round_s(workers: int, megabytes: int, storage: str, codec: str, replicas: int) -> float:
    """Return the median time of a round of a BSP job on Ray, from the end of the computation to the new parameters."""
    steps = 300 if megabytes == 1 else 80
    task = {"kind": "custom", "entrypoint": "tests.bench.rounds:Still", "args": {"elements": megabytes * 262_144}}
    spec = parse_spec(
        {
            "task": task,
            "strategy": {"kind": "bsp"},
            "optimizer": {"kind": "sgd", "lr": 1e-6},
            "compression": {"push": {"kind": codec}, "pull": {"kind": codec}},
            "data": {"batch_size": 1},
            "scale": {"workers": workers, "shards": workers, "shards_in": "workers", "replicas": replicas},
            "budget": {"steps": steps},
            "eval": {"every": 10**9},
            "transport": "direct",
        }
    )
    names = ("time/encode_s", "time/sync_s", "sync/wait_s")
    rounds = [
        sum(r.data.get(name, 0.0) for name in names)
        for r in run(spec, storage).records()
        if r.kind == "metrics" and r.step > steps // 5 and "time/compute_s" in r.data
    ]
    return statistics.median(rounds)


def decision_s(workers: int) -> float:
    """Return the median time from a report to its decision: a coordinator and workers that only report, no Ray between."""
    import multiprocessing as mp

    context = mp.get_context("spawn")
    pipes, processes = [], []
    for name in (COORDINATOR, *map(worker, range(workers))):
        ours, theirs = context.Pipe()
        processes.append(context.Process(target=_decide, args=(name, workers, theirs)))
        pipes.append(ours)
    for process in processes:
        process.start()
    endpoints = dict(pipe.recv() for pipe in pipes)
    for pipe in pipes:
        pipe.send(endpoints)
    times = [pipe.recv() for pipe in pipes[1:]]
    pipes[0].send("enough")
    for process in processes:
        process.join()
    return statistics.median(times)


def _decide(name: Address, workers: int, pipe: Any) -> None:
    """Be the coordinator, or a worker that reports and waits, over and over."""
    from actors.link.base import Contact
    from actors.link.direct import DirectLink
    from actors.shell.coordinator import CoordinatorSeat
    from actors.shell.core_loop import CoreLoop
    from actors.storage.folder import Folder
    from raysync.engine import messages as m

    link = DirectLink(name, b"k" * 32, "127.0.0.1")
    pipe.send((name, link.endpoint))
    link.connect({peer: Contact(None, endpoint) for peer, endpoint in pipe.recv().items() if peer != name})
    strategy = {"kind": "selsync", "delta": 1e30, "warmup_steps": 0}
    spec = parse_spec(
        {"task": {"kind": "digits"}, "strategy": strategy, "scale": {"workers": workers}, "budget": {"steps": 10**6}}
    )
    if name == COORDINATOR:
        loop = CoreLoop(link, {name: CoordinatorSeat(spec, Folder("."), None)})
        threading.Thread(target=lambda: (pipe.recv(), loop.stop()), daemon=True).start()
        loop.run()
    else:
        pipe.send(_report(link, name, m))
    link.close()


def _report(link: Any, sender: Address, m: Any) -> float:
    link.send(COORDINATOR, m.Join(sender=sender, num_samples=1437, num_elements=9610))
    names = (
        "train/loss",
        "train/samples",
        "comm/bytes_up",
        "comm/bytes_down",
        "comm/dense_bytes",
        "feedback/residual_norm",
    )
    metrics, times, view = dict.fromkeys(names, 1.0), [], 0
    while not view:
        view = next((e.message.view.number for e in link.receive(1.0) if isinstance(e.message, m.Welcome)), 0)
    for step in range(2000):
        started_s = time.perf_counter()
        link.send(COORDINATOR, m.Report(view=view, sender=sender, step=step, values=(1.0,), metrics=metrics))
        while not any(isinstance(e.message, m.Decision) and e.message.step == step for e in link.receive(1.0)):
            pass
        times.append(time.perf_counter() - started_s)
    return statistics.median(times[400:])


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

"""What the cores cost as jobs grow: per worker from 2 to 1,024 workers, per megabyte from 1 to 64.

python -m tests.bench scaling     JSON lines, and the ratio of the largest job's cost to the smallest's
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from raysync.address import COORDINATOR, shard, worker
from raysync.compress import Identity
from raysync.control.view import View
from raysync.engine import messages as m
from raysync.engine.coordinator import Coordinator
from raysync.engine.effects import Send
from raysync.engine.server.shard import Shard
from raysync.engine.worker import Worker
from raysync.spec import JobSpec, parse_spec
from raysync.tasks.workload import Workload
from tests.bench.record import record

WORKERS = (2, 8, 32, 128, 512, 1024)
MEGABYTES = (1, 4, 16, 64)
STRATEGIES: dict[str, dict[str, Any]] = {
    "bsp": {"kind": "bsp"},
    "selsync": {"kind": "selsync", "delta": 0.3, "warmup_steps": 0},
    "local_sgd": {"kind": "local_sgd", "sync_every": 8},
    "ssp": {"kind": "ssp", "staleness_bound": 2},
}
BAR = 1.2


def _spec(strategy: dict[str, Any], workers: int, **changes: Any) -> JobSpec:
    data: dict[str, Any] = {
        "task": {"kind": "quadratic"},
        "strategy": strategy,
        "scale": {"workers": workers},
        "budget": {"steps": 10**6},
        **changes,
    }
    return parse_spec(data)


def coordinator_us(kind: str, workers: int, steps: int) -> float:
    """Return the coordinator's processor time per worker and step, in microseconds."""
    core = Coordinator(COORDINATOR, _spec(STRATEGIES[kind], workers))
    senders = [*map(worker, range(workers))]
    for sender in senders:
        core.handle(m.Join(sender=sender, num_samples=100_000, num_elements=100))
    metrics = {
        "train/loss": 1.0,
        "train/samples": 32.0,
        "comm/bytes_up": 1e6,
        "comm/bytes_down": 1e6,
        "comm/dense_bytes": 1e7,
        "feedback/residual_norm": 0.1,
        "time/compute_s": 0.01,
    }
    reports = [
        [m.Report(view=1, sender=sender, step=step, values=(0.01,), metrics=metrics) for sender in senders]
        for step in range(steps)
    ]
    started = time.process_time()
    for step in reports:
        for report in step:
            core.handle(report)
            core.settle()
    return 1e6 * (time.process_time() - started) / (steps * workers)


def shard_us(workers: int, rounds: int) -> float:
    """Return a shard's processor time per push of a small block, in microseconds."""
    core = Shard(shard(0), _spec(STRATEGIES["local_sgd"], workers))
    senders = tuple(map(worker, range(workers)))
    core.handle(m.NewView(view=View(1, senders)))
    payload = Identity().encode(torch.zeros(16), 0)
    core.handle(m.Init(view=1, sender=senders[0], block=0, content="parameter", payload=payload))
    shared: dict[str, Any] = {"view": 1, "block": 0, "participants": None, "payload": payload}
    shared |= {"payload_kind": "displacement", "weight": 1.0, "lr": 1.0}
    pushes = [[m.Push(sender=sender, round=round, **shared) for sender in senders] for round in range(rounds)]
    started = time.process_time()
    for round in pushes:
        for push in round:
            core.handle(push)
    return 1e6 * (time.process_time() - started) / (rounds * workers)


class _Wide:
    """A model of so many megabytes."""

    def __init__(self, megabytes: int) -> None:
        self._megabytes = megabytes

    def model(self) -> nn.Module:
        return nn.Linear(256, 1024 * self._megabytes, bias=False)

    def train_data(self) -> Any:
        return TensorDataset(torch.zeros(4, 256))

    eval_data = train_data

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        raise NotImplementedError


def averaging_ms(megabytes: int, total: int) -> float:
    """Return the time workers of `megabytes` each, `total` together, take to encode their pushes, per megabyte sent,
    with averaged moments, in milliseconds. The total is the same for all sizes, and so is what the caches can hold.
    """
    changes: dict[str, Any] = {"optimizer": {"kind": "adam"}, "inner_state": "average"}
    spec = _spec(STRATEGIES["local_sgd"], 1, **changes)
    workers = [Worker(worker(0), spec, Workload(_Wide(megabytes))) for _ in range(total // megabytes)]
    for core in workers:
        core._data_views.begin(View(1, (worker(0),), servers=(shard(0),)))

    def push(core: Worker, round: int) -> list[Send]:
        blocks = range(len(core.shared.blocks))
        sends = [*core._courier().pushes(blocks, round, None, "displacement", 1.0, 0.1)]
        for index in blocks:
            core.shared.feedback.commit((index, "displacement"), round)
        return sends

    times = []
    for round in range(4):
        started = time.perf_counter()
        sends = [push(core, round) for core in workers]
        times.append(time.perf_counter() - started)
        del sends
    return 1e3 * min(times[1:]) / sum(4 * core.shared.num_elements / 2**20 for core in workers)


def _least(measure: Callable[[], float], repeats: int = 3) -> float:
    return min(measure() for _ in range(repeats))


def main() -> int:
    """Measure and print; 1 if a cost grows by more than the bar."""
    ratios: dict[str, float] = {}
    for kind in STRATEGIES:
        costs = {n: _least(lambda n=n, kind=kind: coordinator_us(kind, n, max(6, 4096 // n))) for n in WORKERS}
        ratios[f"coordinator, {kind}, us per worker and step"] = costs[WORKERS[-1]] / costs[WORKERS[0]]
        record("scaling", what="coordinator", strategy=kind, us_per_worker=costs)
    costs = {n: _least(lambda n=n: shard_us(n, max(4, 2048 // n))) for n in WORKERS}
    ratios["shard, us per push"] = costs[WORKERS[-1]] / costs[WORKERS[0]]
    record("scaling", what="shard", us_per_push=costs)
    costs = {size: averaging_ms(size, MEGABYTES[-1]) for size in MEGABYTES}
    ratios["inner_state average, ms per MB"] = costs[MEGABYTES[-1]] / costs[MEGABYTES[0]]
    record("scaling", what="inner_state average", ms_per_mb=costs)
    for what, ratio in ratios.items():
        print(f"{what}: largest over smallest {ratio:.2f} (bar {BAR})")
    return int(max(ratios.values()) > BAR)

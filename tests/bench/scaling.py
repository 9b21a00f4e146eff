"""What the cores cost as jobs grow: per worker from 2 to 1,024 workers, per megabyte from 1 to 64.

python -m tests.bench scaling     JSON lines, and the ratio of the largest job's cost to the smallest's
"""

from __future__ import annotations

import gc
import pickle
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import TensorDataset

from actors.link.frames import Assembler, encoded, whole_head
from actors.storage.folder import Folder
from actors.storage.journal import Journal
from raysync.address import COORDINATOR, shard, worker
from raysync.compress import Identity
from raysync.control.view import View
from raysync.engine import messages as m
from raysync.engine.coordinator import Coordinator
from raysync.engine.effects import Effects, Note, Send
from raysync.engine.server.shard import Shard
from raysync.engine.worker import Worker
from raysync.events import Event, Metrics
from raysync.spec import JobSpec, parse_spec
from raysync.tasks.workload import Workload
from tests.bench.record import record

WORKERS = (2, 8, 32, 128, 512, 1024)
MEGABYTES = (1, 4, 16, 64)
STEPS_PER_TELL, EVENTS_PER_TELL = 25, 2500
"""Of so many steps the controller hears at a time, asking every quarter of a second; and so many events at most."""
REPORTED = {
    "train/loss": 1.0,
    "train/samples": 32.0,
    "comm/bytes_up": 1e6,
    "comm/bytes_down": 1e6,
    "comm/dense_bytes": 1e7,
    "feedback/residual_norm": 0.1,
    "time/compute_s": 0.01,
}
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


class Costs(NamedTuple):
    """What a worker's step costs those who decide and write down, in microseconds of processor time."""

    coordinator: float
    """Its core."""
    wire: float
    """Reading reports and writing decisions, as the control lane does."""
    controller: float
    """Taking the events over from the coordinator, and writing them into the journal."""


def step_us(kind: str, workers: int, steps: int) -> Costs:
    """Return what one step of one worker costs, with real messages and a real journal."""
    senders = [*map(worker, range(workers))]
    reports = [
        [m.Report(view=1, sender=sender, step=step, values=(0.01,), metrics=REPORTED) for sender in senders]
        for step in range(steps)
    ]
    kept: Effects = []
    _coordinator_s(kind, reports, kept)
    decisions = [effect for effect in kept if isinstance(effect, Send)]
    events = [effect.event for effect in kept if isinstance(effect, Note)]
    scale = 1e6 / (steps * workers)
    wire, controller = scale * _wire_s(reports, decisions), scale * _controller_s(events, steps)
    del kept, decisions, events  # a coordinator keeps none of them
    return Costs(scale * _coordinator_s(kind, reports), wire, controller)


def _coordinator_s(kind: str, reports: list[list[m.Report]], kept: Effects | None = None) -> float:
    """Return what deciding costs, and writing the books; keep what it says where that is asked for."""
    core = Coordinator(COORDINATOR, _spec(STRATEGIES[kind], len(reports[0])))
    for report in reports[0]:
        core.handle(m.Join(sender=report.sender, num_samples=100_000, num_elements=100))
    started = time.process_time()
    for step in reports:
        for report in step:
            effects = core.handle(report) + core.settle()
            if kept is not None:
                kept += effects
    return time.process_time() - started


def _wire_s(reports: list[list[m.Report]], decisions: list[Send]) -> float:
    """Return what the bytes of all these messages cost the coordinator."""
    packed = [whole_head(report.sender, COORDINATOR, encoded(report)) for step in reports for report in step]
    assembler = Assembler()
    started = time.process_time()
    for frame in packed:
        assembler.feed(frame, b"")
    last: m.Message | None = None
    text = b""
    for send in decisions:
        if send.message is not last:
            last, text = send.message, encoded(send.message)
        whole_head(COORDINATOR, send.to, text)
    return time.process_time() - started


def _controller_s(events: list[Event], steps: int) -> float:
    """Return what it costs to hand events over as Ray does, a quarter of a second of them at a time, and to write them."""
    share = min(EVENTS_PER_TELL, max(1, len(events) * STEPS_PER_TELL // steps))
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Folder(folder))
        journal.begin(1)
        journal.note(Metrics({"train/loss": 1.0}), 0.0)  # which draws: what that needs is loaded once
        gc.freeze()  # the controller's process holds none of the bench's reports
        started = time.process_time()
        for at in range(0, len(events), share):
            told = pickle.loads(pickle.dumps(events[at : at + share]))
            journal.add(*told)
        passed = time.process_time() - started
        gc.unfreeze()
        journal.close()
    return passed


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
        found = {n: [step_us(kind, n, max(6, 4096 // n)) for _ in range(3)] for n in WORKERS}
        for what in Costs._fields:
            costs = {n: min(getattr(cost, what) for cost in found[n]) for n in WORKERS}
            ratios[f"{what}, {kind}, us per worker and step"] = costs[WORKERS[-1]] / costs[WORKERS[0]]
            record("scaling", what=what, strategy=kind, us_per_worker=costs)
    costs = {n: _least(lambda n=n: shard_us(n, max(4, 2048 // n))) for n in WORKERS}
    ratios["shard, us per push"] = costs[WORKERS[-1]] / costs[WORKERS[0]]
    record("scaling", what="shard", us_per_push=costs)
    costs = {size: averaging_ms(size, MEGABYTES[-1]) for size in MEGABYTES}
    ratios["inner_state average, ms per MB"] = costs[MEGABYTES[-1]] / costs[MEGABYTES[0]]
    record("scaling", what="inner_state average", ms_per_mb=costs)
    for what, ratio in ratios.items():
        print(f"{what}: largest over smallest {ratio:.2f} (bar {BAR})")
    return int(max(ratios.values()) > BAR)

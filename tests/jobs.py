"""Small jobs the tests share, and a simulation that remembers what every replica saw after every round."""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from raysync.address import Address, worker
from raysync.engine.worker import Worker
from raysync.sim import Simulation
from raysync.spec import JobSpec, parse_spec
from raysync.tasks.workload import Workload

SYNCHRONOUS: dict[str, dict[str, Any]] = {
    "bsp": {"kind": "bsp"},
    "selsync": {"kind": "selsync", "warmup_steps": 2, "delta": 0.03},
    "selsync-overlap": {"kind": "selsync", "warmup_steps": 2, "delta": 0.03, "overlap": True},
    "selsync-gradients": {"kind": "selsync", "warmup_steps": 2, "delta": 0.03, "aggregate": "gradients"},
    "selsync-divergence": {"kind": "selsync", "delta": 0.3, "signal": {"kind": "divergence"}},
    "fedavg": {"kind": "fedavg", "local_epochs": 0.3},
    "fedavg-half": {"kind": "fedavg", "participation": 0.5, "sync_every": 4},
    "local_sgd": {"kind": "local_sgd", "sync_every": 3},
    "diloco": {"kind": "diloco", "sync_every": 5},
}
SSP: dict[str, Any] = {"kind": "ssp", "staleness_bound": 2}
EVERY = {**SYNCHRONOUS, "ssp": SSP}

QUADRATIC = {"kind": "quadratic", "dim": 37, "samples": 200}


def job(strategy: dict[str, Any] | None = None, **changes: Any) -> JobSpec:
    """Return a small job; `changes` replace whole fields, except `scale`, which is merged."""
    scale = {"workers": 4, "shards": 1, "block_bytes": 64, **changes.pop("scale", {})}
    defaults: dict[str, Any] = {
        "task": QUADRATIC,
        "strategy": strategy or {"kind": "bsp"},
        "optimizer": {"kind": "sgd", "lr": 0.05},
        "data": {"batch_size": 8},
        "budget": {"steps": 30},
        "eval": {"every": 10},
        "seed": 3,
    }
    return parse_spec({**defaults, **changes, "scale": scale})


@lru_cache(maxsize=16)
def _workload(task: str) -> Workload:
    return Workload(parse_spec({"task": JobSpec.model_validate_json(task).task.model_dump()}).task.build())


def workload(spec: JobSpec) -> Workload:
    """Return the job's data, loaded once per test process."""
    return _workload(JobSpec(task=spec.task).model_dump_json())


class WatchedSimulation(Simulation):
    """Remembers the visible vector of every worker after every round."""

    def __init__(self, spec: JobSpec, **world: Any) -> None:
        self.after_round: dict[int, dict[int, Tensor]] = defaultdict(dict)
        super().__init__(spec, workload=world.pop("workload", None) or workload(spec), **world)

    def _probe(self, address: Address, point: str) -> None:
        if point == "worker.synced":
            core = self.cores[address]
            assert isinstance(core, Worker)
            self.after_round[max(core.shared.rounds)][core.id] = visible(core)
        super()._probe(address, point)


def visible(core: Worker) -> Tensor:
    """Return a copy of everything a worker can see of the shared vector."""
    return torch.cat([core.shared.visible, core.shared.visible_extras]).clone()


def members(*numbers: int) -> tuple[Address, ...]:
    """Return the addresses of these workers."""
    return tuple(map(worker, numbers))


def final_vector(simulation: Simulation) -> Tensor:
    """Return the shared vector as the shards show it (asynchronous: hold it) at the end."""
    side = "x" if simulation.spec.strategy.needs.pacing == "bounded" else "y"
    blocks = {
        index: getattr(block, side) for shard in simulation.shards.values() for index, block in shard.blocks.items()
    }
    return torch.cat([blocks[index] for index in sorted(blocks)])


def relative(a: Tensor, b: Tensor) -> float:
    """Return the distance of two vectors relative to the second."""
    return float((a.double() - b.double()).norm() / b.double().norm())

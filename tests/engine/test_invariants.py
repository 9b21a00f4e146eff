"""The invariants of the round protocol, for every strategy they apply to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from raysync.address import shard, worker
from raysync.compress import Identity
from raysync.control.view import View
from raysync.data import Sampler
from raysync.engine import messages as m
from raysync.engine.effects import Effects, Send
from raysync.engine.seeds import derive
from raysync.engine.server.shard import Shard
from raysync.sim import Network, Pace
from raysync.spec import JobSpec
from tests.audit import AuditedSimulation
from tests.jobs import EVERY, SYNCHRONOUS, WatchedSimulation, final_vector, job, members, relative, workload

SHAPES = [(1, 1), (2, 1), (2, 3), (4, 1), (4, 3)]
DIGITS = {"kind": "digits", "hidden": [16]}


def _flat(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def _torch_optimizer(spec: JobSpec, model: nn.Module) -> torch.optim.Optimizer:
    if spec.optimizer.kind == "adam":
        return torch.optim.Adam(model.parameters(), spec.optimizer.lr)
    return torch.optim.SGD(
        model.parameters(), spec.optimizer.lr, spec.optimizer.momentum, weight_decay=spec.optimizer.weight_decay
    )


def _train_plainly(spec: JobSpec, batches: list[np.ndarray], seeds: list[int] | None = None) -> Tensor:
    """Plain single-process torch: no raysync but the data order."""
    data = workload(spec)
    torch.manual_seed(spec.seed)
    model = data.task.model()
    optimizer = _torch_optimizer(spec, model)
    for step, indices in enumerate(batches):
        if seeds is not None:
            torch.manual_seed(seeds[step])
        optimizer.zero_grad()
        data.task.loss(model, data.batch(indices)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return _flat(model)


def _batches(spec: JobSpec, number: int, steps: int) -> list[np.ndarray]:
    view = View(1, members(*range(spec.scale.workers)))
    sampler = Sampler(spec.data, workload(spec).num_samples, spec.seed)
    return [sampler.batch(view, worker(number), step) for step in range(steps)]


OPTIMIZERS: list[dict[str, Any]] = [
    {"kind": "sgd", "lr": 0.1},
    {"kind": "sgd", "lr": 0.1, "weight_decay": 0.01},
    {"kind": "sgd", "lr": 0.05, "momentum": 0.9},
    {"kind": "adam", "lr": 0.003},
]


@pytest.mark.parametrize(("workers", "shards"), SHAPES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: "-".join(map(str, o.values())))
def test_bsp_equals_plain_torch_on_the_joined_batch(optimizer: dict[str, Any], workers: int, shards: int) -> None:
    spec = job(
        task=DIGITS,
        optimizer=optimizer,
        budget={"steps": 50},
        scale={"workers": workers, "shards": shards, "block_bytes": 1000},
    )
    simulation = WatchedSimulation(spec)
    simulation.run()
    joined = [
        np.concatenate(step) for step in zip(*(_batches(spec, number, 50) for number in range(workers)), strict=True)
    ]
    assert relative(final_vector(simulation), _train_plainly(spec, joined)) <= 1e-5


@pytest.mark.parametrize(("workers", "shards"), SHAPES)
@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_replicas_are_bitwise_equal_after_every_round(name: str, workers: int, shards: int) -> None:
    simulation = WatchedSimulation(
        job(SYNCHRONOUS[name], scale={"workers": workers, "shards": shards}), pace=Pace(jitter=0.5)
    )
    result = simulation.run()
    assert len(simulation.after_round) == result.rounds > 0
    for seen in simulation.after_round.values():
        assert len(seen) == workers
        assert all(torch.equal(vector, seen[0]) for vector in seen.values())
    assert torch.equal(simulation.after_round[result.rounds - 1][0], final_vector(simulation))


@pytest.mark.parametrize("name", EVERY)
def test_shards_change_nothing(name: str) -> None:
    """The same blocks on 1 or 4 shards give the same bytes; with SSP, whose order of arrival is timing, on an even
    network.
    """
    finals = []
    for shards in (1, 4):
        spec = job(EVERY[name], optimizer={"kind": "sgd", "lr": 0.05, "momentum": 0.9}, scale={"shards": shards})
        pace = Pace(step_s=0.02, slow={0: 1.1337, 1: 1.2719, 2: 1.3141, 3: 1.0123})
        simulation = WatchedSimulation(spec, network=Network(bandwidth_bits_per_s=1e15, latency_s=0.001), pace=pace)
        simulation.run()
        finals.append(final_vector(simulation))
    assert torch.equal(*finals)


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_selsync_with_delta_zero_is_bsp(workers: int, momentum: float) -> None:
    optimizer = {"kind": "sgd", "lr": 0.05, "momentum": momentum}
    finals = []
    for strategy in ({"kind": "bsp"}, {"kind": "selsync", "delta": 0.0}):
        simulation = WatchedSimulation(job(strategy, optimizer=optimizer, scale={"workers": workers}))
        assert simulation.run().lssr == 0
        finals.append(final_vector(simulation))
    assert relative(*finals) <= 1e-5


@pytest.mark.parametrize("aggregate", ["parameters", "gradients"])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_selsync_with_delta_infinite_is_independent_runs(workers: int, aggregate: str) -> None:
    strategy = {"kind": "selsync", "delta": float("inf"), "warmup_steps": 0, "aggregate": aggregate}
    spec = job(strategy, optimizer={"kind": "sgd", "lr": 0.05, "momentum": 0.9}, scale={"workers": workers})
    simulation = WatchedSimulation(spec)
    simulation.run_until(
        lambda sim: len(sim.workers) == workers and all(core.step == 20 for core in sim.workers.values())
    )
    assert simulation.coordinator.books.metrics.lssr == 1
    for number in range(workers):
        seeds = [derive(spec.seed, "step", number, step) for step in range(20)]
        expected = _train_plainly(spec, _batches(spec, number, 20), seeds)
        assert torch.equal(simulation.workers[number].replica.flat, expected)


@pytest.mark.parametrize("name", [name for name in EVERY if name != "diloco"])  # its outer momentum acts even alone
def test_one_worker_behaves_as_plain_training(name: str) -> None:
    if "gradients" in name:
        strategy = {**EVERY[name], "max_interval": 1}
    else:
        strategy = EVERY[name]
    simulation = WatchedSimulation(job(strategy, scale={"workers": 1}, optimizer={"kind": "adam", "lr": 0.01}))
    simulation.run()
    expected = _train_plainly(simulation.spec, _batches(simulation.spec, 0, 30))
    flat = simulation.workers[0].shared.visible
    assert relative(flat, expected) <= 1e-4


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize(("workers", "shards"), [(1, 1), (4, 3)])
def test_books_balance(name: str, workers: int, shards: int) -> None:
    spec = job(
        EVERY[name], scale={"workers": workers, "shards": shards}, lr_schedule={"kind": "cosine", "warmup_steps": 3}
    )
    simulation = AuditedSimulation(spec, workload=workload(spec), pace=Pace(jitter=0.4))
    simulation.run()
    simulation.check()
    pushed = {(key[0], key[1], key[2]) for key in simulation.payloads}
    applied = [(sender, key[0], key[1]) for key, closed in simulation.closed.items() for sender in closed.pushes]
    assert len(applied) == len(set(applied)), "a push was applied twice"
    assert set(applied) == pushed, "a push was lost"


def test_retried_push_counts_once() -> None:
    spec = job(scale={"workers": 2})
    core = Shard(shard(0), spec)
    core.handle(m.NewView(view=View(1, members(0, 1))))
    zeros, ones = Identity().encode(torch.zeros(3), 0), Identity().encode(torch.ones(3), 0)
    core.handle(m.Init(view=1, sender=worker(0), block=0, content="parameter", payload=zeros))

    def push(number: int) -> Effects:
        return core.handle(
            m.Push(
                view=1,
                sender=worker(number),
                block=0,
                round=0,
                participants=members(0, 1),
                payload=ones,
                payload_kind="gradient",
                weight=1,
                lr=1.0,
            )
        )

    assert push(0) == push(0) == [], "nobody is answered before the round closes"
    first = push(1)
    assert [send.to for send in first] == [*members(0, 1)]
    assert push(1)[0].message == push(0)[0].message == first[0].message, "a late retry is told the result again"
    assert torch.equal(core.blocks[0].x, -torch.ones(3))


def test_old_view_is_answered_with_the_new_one() -> None:
    spec = job(scale={"workers": 2})
    core = Shard(shard(0), spec)
    core.handle(m.NewView(view=View(5, members(0, 1), servers=(shard(0),))))
    answer = core.handle(m.Pull(view=4, sender=worker(0), block=0, round=0, participants=()))
    assert answer == [Send(worker(0), m.NewView(view=View(5, members(0, 1), servers=(shard(0),))))]
    ahead = m.Fetch(view=6, sender=worker(0), block=0, round=-1, participants=())
    assert core.handle(ahead) == [], "a message from the future waits"
    later = core.handle(m.NewView(view=View(6, members(0, 1), servers=(shard(0),))))
    assert Send(worker(0), m.NeedInit(block=0)) in later


@pytest.mark.parametrize("name", EVERY)
def test_same_seed_same_run(name: str) -> None:
    runs = []
    for _ in range(2):
        simulation = WatchedSimulation(job(EVERY[name]), pace=Pace(jitter=0.3))
        result = simulation.run()
        runs.append((final_vector(simulation), result.virtual_time_s, result.events))
    assert torch.equal(runs[0][0], runs[1][0])
    assert runs[0][1:] == runs[1][1:]


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_lssr_counts_decisions(name: str) -> None:
    simulation = WatchedSimulation(job(SYNCHRONOUS[name]))
    result = simulation.run()
    decisions = [event.data for event in result.events if event.kind == "decision"]
    assert len(decisions) == 30
    assert all(decision["reason"] for decision in decisions)
    local = sum(not decision["sync"] for decision in decisions)
    assert result.lssr == local / 30
    assert result.rounds == 30 - local == len(simulation.after_round)


def test_corrupt_push_is_refused_and_its_resend_heals() -> None:
    from raysync.errors import PayloadError

    core = Shard(shard(0), job(scale={"workers": 2}))
    core.handle(m.NewView(view=View(1, members(0, 1))))
    good = Identity().encode(torch.ones(3), 0)
    core.handle(
        m.Init(view=1, sender=worker(0), block=0, content="parameter", payload=Identity().encode(torch.zeros(3), 0))
    )

    def push(number: int, payload: bytes) -> Effects:
        return core.handle(
            m.Push(
                view=1,
                sender=worker(number),
                block=0,
                round=0,
                participants=members(0, 1),
                payload=payload,
                payload_kind="gradient",
                weight=1,
                lr=1.0,
            )
        )

    for bad in (good[:-1] + b"x", good[:-4], Identity().encode(torch.ones(4), 0), b""):
        with pytest.raises(PayloadError):
            push(0, bad)
    push(0, good)
    assert len(push(1, good)) == 2
    assert torch.equal(core.blocks[0].x, -torch.ones(3))

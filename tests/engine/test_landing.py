"""Rounds that land late: workers go on while one is on its way, and lose nothing of what they did meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from raysync.engine.training.shared_vector import SharedVector
from raysync.errors import SpecError
from raysync.events import Event
from raysync.sim import Network, Pace, Simulation
from raysync.spec import parse_spec
from raysync.tasks.workload import Workload
from tests import models
from tests.audit import AuditedSimulation
from tests.engine.test_divergence import Steep
from tests.faults import make_spec, run_seed
from tests.jobs import WatchedSimulation, final_vector, job, members, workload

LATE: dict[str, dict[str, Any]] = {
    "selsync": {"kind": "selsync", "warmup_steps": 2, "delta": 0.03},
    "selsync-overlap": {"kind": "selsync", "warmup_steps": 2, "delta": 0.03, "overlap": True},
    "selsync-divergence": {"kind": "selsync", "delta": 0.3, "signal": {"kind": "divergence"}},
    "fedavg-half": {"kind": "fedavg", "participation": 0.5, "sync_every": 4},
    "local_sgd": {"kind": "local_sgd", "sync_every": 3},
    "diloco": {"kind": "diloco", "sync_every": 5},
}
FAR = Network(latencies_s={f"shard/{number}": 0.055 for number in range(8)})
"""A round takes five and a half steps there and back; decisions do not."""
ONEBIT = {"push": {"kind": "onebit", "chunk": 32}, "pull": {"kind": "onebit", "chunk": 32}}


def _late(name: str, **changes: Any) -> Any:
    return job({**LATE[name], "landing": "late"}, **changes)


def _told(events: Any, name: str) -> list[float]:
    return [event.data[name] for event in events if event.kind == "metrics" and name in event.data]


@pytest.mark.parametrize("name", LATE)
def test_visible_copies_are_bitwise_equal_and_the_books_balance(name: str) -> None:
    spec = _late(name, compression=ONEBIT, scale={"workers": 3, "shards": 2}, inner_state="average")
    pace = Pace(jitter=0.3, slow={0: 1.3})
    simulation = WatchedSimulation(spec, network=FAR, pace=pace)
    result = simulation.run()
    assert len(simulation.after_round) == result.rounds > 1
    for seen in simulation.after_round.values():
        assert len(seen) == 3
        assert all(torch.equal(vector, seen[0]) for vector in seen.values())
    assert torch.equal(simulation.after_round[result.rounds - 1][0], final_vector(simulation))
    assert result.staleness_max >= 3, "rounds must really take a while"
    audited = AuditedSimulation(spec, workload=workload(spec), network=FAR, pace=pace)
    audited.run()
    audited.check()


@pytest.mark.parametrize("name", LATE)
def test_without_latency_it_is_the_same_as_waiting(name: str) -> None:
    """What lands before the next step has begun lands on nothing: bit for bit what waiting comes to."""
    at_once = Network(latency_s=0.0, bandwidth_bits_per_s=1e18)
    ends = []
    rare = {"warmup_steps": 0, "min_interval": 2} if name == "selsync-overlap" else {}  # decided before it can land
    for landing in ("wait", "late"):
        spec = job(
            {**LATE[name], **rare, "landing": landing}, compression=ONEBIT, optimizer={"kind": "adam", "lr": 0.01}
        )
        simulation = Simulation(spec, workload=workload(spec), network=at_once)
        result = simulation.run()
        ends.append((final_vector(simulation), result.rounds, result.staleness_max))
    assert torch.equal(ends[0][0], ends[1][0])
    assert ends[0][1:] == ends[1][1:]


def test_what_a_worker_did_meanwhile_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Local minus visible is, after a landing, what the worker has done since it pushed."""
    land, kept = SharedVector.land, []

    def watched(shared: SharedVector) -> None:
        assert shared._pushed is not None
        since = shared._replica.flat.double() - shared._pushed.double()
        land(shared)
        kept.append((since, shared._replica.flat.double() - shared.visible.double()))

    monkeypatch.setattr(SharedVector, "land", watched)
    spec = _late("local_sgd")
    Simulation(spec, workload=workload(spec), network=FAR).run()
    assert len(kept) > 8
    assert max(float(since.abs().max()) for since, _ in kept) > 1e-3
    assert max(float((since - now).abs().max()) for since, now in kept) < 1e-6


def test_a_slow_link_costs_bytes_and_not_time() -> None:
    """2 MB a round over 10 Mbit/s: each takes some 40 steps, which waiting pays for and landing late does not."""
    task, steps, step_s = {"kind": "digits", "hidden": [256, 256]}, 240, 0.05
    times, sent = {}, {}
    for landing in ("wait", "late"):
        strategy = {"kind": "local_sgd", "sync_every": 48, "landing": landing}
        scale = {"workers": 2, "shards": 2, "block_bytes": 65536}
        spec = job(strategy, task=task, scale=scale, budget={"steps": steps}, eval={"every": 120})
        network = Network(bandwidth_bits_per_s=5e6, latency_s=0.01, has_lanes=True)
        simulation = Simulation(spec, workload=workload(spec), network=network, pace=Pace(step_s=step_s))
        result = simulation.run()
        times[landing], sent[landing] = _training_s(result.events), result.bytes_up + result.bytes_down
    assert sent["late"] == sent["wait"]
    bare_s = steps * step_s
    assert times["late"] < 1.05 * bare_s
    assert times["wait"] > 1.3 * bare_s


def _training_s(events: Sequence[Event]) -> float:
    """Return the time of all steps but the first: the model has been fetched, and the last round is not begun."""
    decided = [event.time_s for event in events if event.kind == "decision"]
    return decided[-1] - decided[2]  # the first two rest on no report


def test_one_round_is_on_its_way_at_a_time_and_its_staleness_is_told() -> None:
    spec = _late("local_sgd", budget={"steps": 40})
    result = Simulation(spec, workload=workload(spec), network=FAR).run()
    decisions = [event for event in result.events if event.kind == "decision"]
    put_off = [event for event in decisions if "is on its way" in event.data["reason"]]
    assert put_off
    assert not any(event.data["sync"] for event in put_off)
    synced = [event.step for event in decisions if event.data["sync"]]
    assert min(b - a for a, b in pairwise(synced[:-1])) >= 5
    assert max(_told(result.events, "staleness/last")) >= 4
    assert _told(result.events, "staleness/max")[-1] == result.staleness_max


def test_evaluations_are_of_one_round_whoever_has_it_when() -> None:
    spec = _late("local_sgd", task={"kind": "digits", "hidden": [16]}, budget={"steps": 60}, eval={"every": 10})
    pace = Pace(jitter=0.5, slow={0: 2.0})
    simulation = Simulation(spec, workload=workload(spec), network=FAR, pace=pace)
    result = simulation.run()
    rounds = _told(result.events, "eval/round")
    assert rounds == sorted(rounds)
    assert len(rounds) >= 5
    assert rounds[0] == -1


@pytest.mark.parametrize("network", [Network(), FAR], ids=["near", "far"])
def test_knobs_checkpoints_and_people_come_when_nothing_is_on_its_way(network: Network) -> None:
    spec = _late(
        "local_sgd", checkpoint={"every_rounds": 2}, scale={"workers": 3, "max_workers": 4}, budget={"steps": 120}
    )
    simulation = WatchedSimulation(spec, network=network, durable=True)
    simulation.after(0.3, lambda: simulation.turn(sync_every=5))
    simulation.after(0.6, simulation.add_worker)
    simulation.after(1.0, lambda: simulation.remove_worker(1))
    simulation.after(1.3, lambda: simulation.turn(pause=True))
    simulation.after(1.4, lambda: simulation.tell(_take_checkpoint()))
    simulation.after(3.0, lambda: simulation.turn(pause=False))
    result = simulation.run()
    assert simulation.coordinator.view.members == members(0, 2, 3)
    for seen in simulation.after_round.values():
        assert all(torch.equal(vector, next(iter(seen.values()))) for vector in seen.values())
    kinds = [event.kind for event in result.events]
    assert kinds.count("knobs") == 3
    taken = [event for event in result.events if event.kind == "checkpoint"]
    assert len(taken) >= 3
    assert any(1.3 < event.time_s < 3.0 for event in taken), "one was asked for during the pause"
    checkpoint = simulation.checkpoints[max(simulation.checkpoints)]
    again = Simulation.restore(spec, checkpoint, workload=workload(spec), network=network, durable=True)
    assert again.run().metrics["eval/loss"] < 2 * result.metrics["eval/loss"] + 1e-3


def _take_checkpoint() -> Any:
    from raysync.engine import messages as m

    return m.TakeCheckpoint()


def test_what_goes_on_from_a_checkpoint_has_nothing_on_its_way() -> None:
    spec = _late("local_sgd", checkpoint={"every_rounds": 3}, budget={"steps": 40}, inner_state="average")
    simulation = Simulation(spec, workload=workload(spec), network=FAR, durable=True)
    simulation.run()
    checkpoint = simulation.checkpoints[2]
    again = WatchedSimulation.restore(spec, checkpoint, network=FAR, durable=True)
    assert all(core.flight is None for core in again.workers.values())
    rounds = {max(core.shared.rounds) for core in again.workers.values()}
    assert len(rounds) == 1
    result = again.run()
    assert isinstance(again, WatchedSimulation)
    assert min(again.after_round) == 1 + rounds.pop()
    for seen in again.after_round.values():
        assert all(torch.equal(vector, seen[0]) for vector in seen.values())
    assert result.rounds == 1 + max(again.after_round)


def test_the_coordinator_may_die_while_a_round_is_on_its_way() -> None:
    from raysync.address import COORDINATOR

    spec = _late("diloco", compression=ONEBIT, budget={"steps": 40})
    simulation = AuditedSimulation(spec, workload=workload(spec), network=FAR, durable=True)
    simulation.after(0.18, lambda: _kill_in_flight(simulation, COORDINATOR))
    simulation.run()
    simulation.check()


def _kill_in_flight(simulation: Simulation, address: Any) -> None:
    if any(core.flight is not None for core in simulation.workers.values()):
        simulation.kill(address)
    else:
        simulation.after(0.005, lambda: _kill_in_flight(simulation, address))


@pytest.mark.parametrize("role", ["worker/0", "shard/0"])
def test_others_may_die_then_as_well(role: str) -> None:
    from raysync.address import Address

    spec = _late("local_sgd", compression=ONEBIT, scale={"workers": 3, "shards": 2}, budget={"steps": 40})
    simulation = AuditedSimulation(spec, workload=workload(spec), network=FAR, durable=True)
    simulation.after(0.1, lambda: _kill_in_flight(simulation, Address.parse(role)))
    simulation.run()
    simulation.check()


def test_fault_schedules_draw_it() -> None:
    """`tests.faults` runs them with all others; here a few more, of rounds that take long."""
    drawn = [seed for seed in range(3000, 3090) if make_spec(seed).strategy.needs.lands_late]
    assert len(drawn) > 20
    stale = [run_seed(seed).coordinator.books.metrics.staleness_max for seed in drawn]
    assert max(stale) >= 2


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"strategy": {"kind": "selsync", "aggregate": "gradients", "landing": "late"}}, "needs aggregate: parameters"),
        ({"strategy": {"kind": "bsp", "landing": "late"}}, "belongs to kind"),
        ({"strategy": {"kind": "ssp", "landing": "late"}}, "belongs to kind"),
        ({"strategy": {"kind": "async_sparse", "landing": "late"}}, "'ema', 'delta_rule' or 'overwrite'"),
        (
            {
                "strategy": {"kind": "local_sgd", "landing": "late"},
                "scale": {"stages": 2},
                "schedule": {"kind": "gpipe"},
            },
            "has no pipelines",
        ),
    ],
)
def test_it_is_refused_where_it_makes_no_sense(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(SpecError, match=problem):
        parse_spec({"task": {"kind": "quadratic"}, **fields})


def test_all_buffers_land_as_the_mean() -> None:
    """BatchNorm's running variance never becomes negative, however late."""
    spec = _late(
        "local_sgd", task={"kind": "custom", "entrypoint": "tests.models:Odd"}, optimizer={"kind": "adam", "lr": 0.01}
    )
    simulation = Simulation(spec, workload=workload(spec), network=FAR, pace=Pace(jitter=0.5))
    simulation.run()
    for core in simulation.workers.values():
        for name, value in core.show_model(lambda shown: dict(shown)).items():
            assert _is_fine(name, value), name


def _is_fine(name: str, value: Tensor) -> bool:
    return bool((value > 0).all()) if name.endswith("running_var") else not bool(value.isnan().any())


@pytest.mark.parametrize("task", ["Poisoned", "Steep"])
def test_what_is_not_finite_costs_only_what_was_done_since_the_push(task: str) -> None:
    """A round on its way is not disturbed: the worker goes back to what it pushed, not to what was seen before that."""
    made, lr = (models.Poisoned(), 0.05) if task == "Poisoned" else (Steep(), 2.0)
    spec = _late("local_sgd", data={"batch_size": 4}, compression=ONEBIT, optimizer={"kind": "sgd", "lr": lr})
    simulation = AuditedSimulation(spec, workload=Workload(made), network=FAR)
    simulation.run()
    if task == "Poisoned":
        simulation.check()  # the auditor does not know of updates that were offered and taken back
    assert any(event.kind == "divergence" for event in simulation.ledger.events)
    assert not bool(final_vector(simulation).isnan().any())


def test_progress_is_dropped_to_what_was_pushed() -> None:
    spec = _late("local_sgd")
    simulation = Simulation(spec, workload=workload(spec), network=FAR)
    simulation.run_until(lambda simulation: any(core.flight is not None for core in simulation.workers.values()))
    core = next(core for core in simulation.workers.values() if core.flight is not None)
    pushed = core.replica.flat.clone()
    core.replica.flat.fill_(torch.nan)
    core.shared.drop_progress()
    assert torch.equal(core.replica.flat, pushed)
    assert not torch.equal(pushed, core.shared.visible)

"""Checkpoints beside training: what dies between the cut and the last byte, and going on with other numbers."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from raysync.address import Address, Role
from raysync.engine import messages as m
from raysync.engine.member import Phase
from raysync.sim import Fault, Pace, Simulation
from raysync.spec import JobSpec
from tests.audit import AuditedSimulation
from tests.engine.test_mesh import LATE, LOCAL, SPARSE, WORKLOAD, mesh
from tests.jobs import EVERY, final_vector, job, workload

WRITING = ("worker.writing", "shard.writing", "coordinator.writing", "coordinator.cut")


def told(simulation: Simulation) -> list[tuple[str, int]]:
    """Return what is said of checkpoints, in order."""
    events = [event for event in simulation.ledger.events if "checkpoint" in event.kind]
    return [(event.kind, event.data["checkpoint"]) for event in events]


def complete(simulation: Simulation) -> list[int]:
    return sorted(number for number, parts in simulation.checkpoints.items() if "coordinator" in parts)


@pytest.mark.parametrize("seed", range(40))
def test_whoever_dies_between_cut_and_written_costs_that_checkpoint_only(seed: int) -> None:
    choose = random.Random(f"writing/{seed}")
    name = choose.choice([*EVERY])
    scale = {"workers": 3, "max_workers": 4, "shards": 2, "replicas": choose.choice((0, 1))}
    spec = job(EVERY[name], scale=scale, checkpoint={"every_rounds": 3}, budget={"steps": 50}, seed=seed)
    where = choose.sample(WRITING, 2)
    faults = tuple(Fault(action="kill", where=at, nth=choose.randint(1, 2), delay_s=0.2) for at in where)
    pace = Pace(jitter=0.3, write_s=choose.choice((0.02, 0.1, 0.3)))
    simulation = AuditedSimulation(spec, workload=workload(spec), faults=faults, pace=pace, max_time_s=300)
    simulation.run()
    simulation.check()
    assert simulation.happened
    taken = [number for kind, number in told(simulation) if kind == "checkpoint"]
    assert taken, "another one is taken"
    assert {*taken} <= {*complete(simulation)}
    assert not {number for kind, number in told(simulation) if kind == "checkpoint_failed"} & {*taken}
    for number in complete(simulation):
        restored = Simulation.restore(spec, simulation.checkpoints[number], workload=workload(spec), max_time_s=300)
        restored.run()
        assert restored.coordinator.finished


@pytest.mark.parametrize("name", ["bsp", "selsync-overlap", "ssp", "local_sgd"])
def test_the_first_checkpoint_is_taken_as_soon_as_the_first_round_has_closed(name: str) -> None:
    spec = job(EVERY[name], checkpoint={"every_rounds": 1000})
    simulation = Simulation(spec, workload=workload(spec))
    simulation.run()
    assert told(simulation) == [("checkpoint", 1)]
    (event,) = [event for event in simulation.ledger.events if event.kind == "checkpoint"]
    decisions = [event for event in simulation.ledger.events if event.kind == "decision" and event.data["sync"]]
    if name != "ssp":
        assert event.data["round"] == 0
        assert decisions[0].step < event.step <= decisions[0].step + 2


def test_replicas_that_run_free_have_their_first_checkpoint_soon() -> None:
    spec = mesh(2, 2, LATE, SPARSE, checkpoint={"every_rounds": 100}, budget={"steps": 30})
    simulation = Simulation(spec, workload=WORKLOAD)
    simulation.run()
    (event,) = [event for event in simulation.ledger.events if event.kind == "checkpoint"]
    assert event.step < 10


@pytest.mark.parametrize("name", ["bsp", "selsync", "ssp", "diloco"])
def test_nobody_waits_for_a_checkpoint_to_be_written(name: str) -> None:
    """Storage that takes as long as fifty steps, and storage that takes no time: the same job in the same time."""
    spec = job(EVERY[name], checkpoint={"every_rounds": 1000})
    found = []
    for write_s in (0.0, 1.0):
        simulation = Simulation(spec, workload=workload(spec), pace=Pace(step_s=0.02, write_s=write_s))
        steps: list[float] = []
        simulation._on_event = lambda event, now_s, steps=steps: steps.append(now_s) if event.step == 25 else None
        simulation.run()
        found.append(steps[0])
        assert told(simulation) == [("checkpoint", 1)]
    assert found[1] - found[0] < 0.02


def test_a_leaver_stays_until_its_part_is_written() -> None:
    spec = job(EVERY["local_sgd"], scale={"workers": 3}, budget={"steps": 40})
    simulation = Simulation(spec, workload=workload(spec), pace=Pace(write_s=0.4))
    simulation.after(0.1, lambda: simulation.tell(m.TakeCheckpoint()))
    simulation.after(0.12, lambda: simulation.remove_worker(2))
    leaver = Address(Role.WORKER, 0, 2)
    simulation.run_until(lambda sim: sim.members.get(leaver) is not None and sim.members[leaver].phase is Phase.GONE)
    assert "worker/2" in simulation.checkpoints[1]
    simulation.run()
    assert told(simulation) == [("checkpoint", 1)]


@pytest.mark.parametrize("what", ["CheckpointCut", "CheckpointPart", "CheckpointRequest"])
@pytest.mark.parametrize("nth", range(1, 6))
def test_what_is_lost_of_a_checkpoint_is_said_again(what: str, nth: int) -> None:
    spec = job(EVERY["bsp"], scale={"workers": 2, "shards": 2}, checkpoint={"every_rounds": 20})
    faults = (Fault(action="drop", where=what, nth=nth),)
    simulation = AuditedSimulation(spec, workload=workload(spec), faults=faults, max_time_s=300)
    simulation.run()
    assert simulation.happened
    assert {number for kind, number in told(simulation) if kind == "checkpoint"} == {*complete(simulation)} == {1, 2}


# Other numbers


def stopped_at(spec: JobSpec, at_s: float, load: Any = None) -> tuple[Simulation, dict[str, dict[str, Any]]]:
    simulation = Simulation(spec, workload=load or workload(spec), pace=Pace(jitter=0.3))
    simulation.after(at_s, lambda: simulation.tell(m.TakeCheckpoint()))
    simulation.run()
    return simulation, simulation.checkpoints[1]


def rescaled(spec: JobSpec, **scale: Any) -> JobSpec:
    return spec.model_copy(update={"scale": spec.scale.model_copy(update=scale)})


@pytest.mark.parametrize("shards", [1, 2, 5])
@pytest.mark.parametrize("name", EVERY)
def test_a_job_goes_on_with_another_number_of_shards_bit_for_bit(name: str, shards: int) -> None:
    spec = job(EVERY[name], scale={"shards": 3}, optimizer={"kind": "adam", "lr": 0.01})
    whole, checkpoint = stopped_at(spec, 0.3)
    other = rescaled(spec, shards=shards)
    restored = Simulation.restore(other, checkpoint, workload=workload(spec), pace=Pace(jitter=0.3))
    restored.run()
    assert len(restored.coordinator.view.servers) == shards
    if name != "ssp":
        assert torch.equal(final_vector(whole), final_vector(restored)), "blocks are cut the same, whoever has them"


@pytest.mark.parametrize("workers", [(0,), (0, 2), (1, 3)])
@pytest.mark.parametrize("name", EVERY)
def test_a_job_goes_on_with_fewer_workers(name: str, workers: tuple[int, ...]) -> None:
    codecs = {"push": {"kind": "topk", "ratio": 0.2}, "pull": {"kind": "onebit", "chunk": 32}}
    spec = job(EVERY[name], scale={"shards": 2, "max_workers": 4}, compression=codecs)
    _, checkpoint = stopped_at(spec, 0.3)
    other = rescaled(spec, shards=3, workers=len(workers), max_workers=len(workers))
    restored = Simulation.restore(other, checkpoint, workers=workers, workload=workload(spec), pace=Pace(jitter=0.3))
    result = restored.run()
    assert [worker.index for worker in restored.coordinator.view.members] == [*workers]
    lost = [event.data["feedback/lost_norm"] for event in result.events if "feedback/lost_norm" in event.data]
    assert lost[-1] > 0, "the residuals of those who were left out are counted"
    views = [event for event in result.events if event.kind == "view" and event.data["died"]]
    assert sorted(who for view in views for who in view.data["died"]) == [
        index for index in range(4) if index not in workers
    ]
    if restored.spec.strategy.needs.pacing == "lock_step":
        replicas = [worker.shared.visible for worker in restored.workers.values()]
        assert all(torch.equal(replicas[0], other) for other in replicas)


@pytest.mark.parametrize("name", ["bsp", "selsync", "ssp"])
def test_a_job_goes_on_with_more_workers(name: str) -> None:
    spec = job(EVERY[name], scale={"workers": 2, "max_workers": 5, "shards": 2})
    _, checkpoint = stopped_at(spec, 0.2)
    other = rescaled(spec, shards=4, workers=4, min_workers=3)
    restored = Simulation.restore(other, checkpoint, workload=workload(spec))
    for _ in range(2):
        restored.add_worker()
    restored.run()
    assert [worker.index for worker in restored.coordinator.view.members] == [0, 1, 2, 3]


@pytest.mark.parametrize(("schedule", "strategy"), [("gpipe", LOCAL), (LATE, SPARSE)])
def test_pipelines_go_on_with_another_number_of_replicas_and_shards(schedule: Any, strategy: Any) -> None:
    spec = mesh(3, 3, schedule, strategy, budget={"steps": 30})
    _, checkpoint = stopped_at(spec, 0.3, WORKLOAD)
    other = rescaled(spec, shards=2, workers=2)
    restored = Simulation.restore(other, checkpoint, workers=(0, 2), workload=WORKLOAD)
    restored.run()
    assert [pipeline.index for pipeline in restored.coordinator.view.members] == [0, 2]
    again = Simulation.restore(rescaled(spec, workers=4), checkpoint, workload=WORKLOAD)
    again.add_worker()
    again.run()
    assert len(again.coordinator.view.members) == 4


def test_workers_that_are_left_out_cost_what_they_had_not_sent_and_no_more() -> None:
    """What the server holds goes on from where it was: nothing that was applied is undone by their absence."""
    spec = job(EVERY["bsp"], scale={"shards": 2})
    _, checkpoint = stopped_at(spec, 0.3)
    saved = {index: block["x"] for who in ("shard/0", "shard/1") for index, block in checkpoint[who]["blocks"].items()}
    restored = Simulation.restore(
        rescaled(spec, shards=5, workers=2), checkpoint, workers=(0, 1), workload=workload(spec)
    )
    found: dict[int, Tensor] = {
        index: block.x for shard in restored.shards.values() for index, block in shard.blocks.items()
    }
    assert found.keys() == saved.keys()
    assert all(torch.equal(found[index], values) for index, values in saved.items())

"""Save, destroy, restore: the job goes on bit for bit, whatever the strategy and the moment."""

from __future__ import annotations

import io
import random
from typing import Any

import pytest
import torch

from raysync.engine import messages as m
from raysync.metrics import Event
from raysync.sim import Pace, Simulation
from tests.jobs import EVERY, final_vector, job, workload


def _run(spec: Any, snapshot_s: float) -> Simulation:
    simulation = Simulation(spec, workload=workload(spec), pace=Pace(jitter=0.4))
    simulation.after(snapshot_s, lambda: simulation.tell(m.TakeSnapshot()))
    simulation.run()
    return simulation


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", EVERY)
def test_restored_job_continues_bit_for_bit(name: str, optimizer: str) -> None:
    choose = random.Random(f"{name}/{optimizer}")
    for _ in range(3):
        inner = {"kind": "sgd", "lr": 0.05, "momentum": 0.9} if optimizer == "sgd" else {"kind": "adam", "lr": 0.01}
        changes: dict[str, Any] = {"optimizer": inner, "seed": choose.randrange(1000), "scale": {"shards": 2}}
        if EVERY[name]["kind"] in ("fedavg", "local_sgd", "diloco"):
            changes["inner_state"] = choose.choice(("keep", "average", "reset"))
        spec = job(EVERY[name], **changes)
        whole = _run(spec, choose.uniform(0.05, 0.5))
        (number,) = whole.snapshots
        stored = io.BytesIO()
        torch.save(whole.snapshots[number], stored)
        stored.seek(0)
        snapshot = torch.load(stored, weights_only=True)
        assert set(snapshot) == {"coordinator", "shard/0", "shard/1", *(f"worker/{i}" for i in range(4))}
        restored = Simulation.restore(spec, snapshot, workload=workload(spec), pace=Pace(jitter=0.4))
        restored.run()
        assert torch.equal(final_vector(whole), final_vector(restored))
        for worker in range(4):
            assert torch.equal(whole.workers[worker].replica.flat, restored.workers[worker].replica.flat)
        later = [event for event in whole.events if event.sequence >= restored.events[0].sequence]
        assert [_story(event) for event in later] == [_story(event) for event in restored.events]


@pytest.mark.parametrize("name", EVERY)
def test_a_stopped_job_goes_on_as_if_it_had_never_been_stopped(name: str) -> None:
    spec = job(EVERY[name], scale={"shards": 2})
    whole = Simulation(spec, workload=workload(spec))
    whole.run()
    stopped = Simulation(spec, workload=workload(spec))

    def stop() -> None:
        stopped.tell(m.TakeSnapshot())
        stopped.tell(m.Stop(reason="interrupted"))

    stopped.after(0.3, stop)
    stopped.run()
    last = max(event.step for event in stopped.events)
    assert last < spec.budget.steps, "it must not claim steps it has not made"
    (number,) = stopped.snapshots
    restored = Simulation.restore(spec, stopped.snapshots[number], workload=workload(spec))
    restored.run()
    assert torch.equal(final_vector(whole), final_vector(restored))
    assert max(event.step for event in restored.events) == spec.budget.steps


def test_checkpoints_come_every_so_many_rounds() -> None:
    spec = job({"kind": "local_sgd", "sync_every": 2}, checkpoint={"every_rounds": 4})
    simulation = Simulation(spec, workload=workload(spec))
    simulation.run()
    assert [event.data["round"] for event in simulation.events if event.kind == "snapshot"] == [3, 7, 11]
    assert len(simulation.snapshots) == 3


def test_worker_state_is_refused_in_the_middle_of_a_round() -> None:
    from raysync.errors import ProtocolError

    spec = job()
    simulation = Simulation(spec, workload=workload(spec))
    simulation.run_until(lambda sim: any(worker.phase.value == "syncing" for worker in sim.workers.values()))
    worker = next(worker for worker in simulation.workers.values() if worker.phase.value == "syncing")
    with pytest.raises(ProtocolError, match="cannot be saved in phase syncing"):
        worker.state_dict()


def _story(event: Event) -> tuple[Any, ...]:
    """Return what happened, without what a clock says of it."""
    return event.sequence, event.kind, event.step, {k: v for k, v in event.data.items() if k != "train/samples_per_s"}

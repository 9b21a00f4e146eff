"""Save, destroy, restore: the job goes on bit for bit, whatever the strategy and the moment."""

from __future__ import annotations

import io
import random
from collections import Counter
from typing import Any

import pytest
import torch

from raysync.address import COORDINATOR, Address
from raysync.engine import messages as m
from raysync.engine.coordinator import Coordinator
from raysync.engine.core import Core
from raysync.engine.effects import KeepPart
from raysync.events import Event
from raysync.sim import Fault, Pace, Simulation
from tests.jobs import EVERY, final_vector, job, workload


def _run(spec: Any, checkpoint_s: float) -> Simulation:
    simulation = Simulation(spec, workload=workload(spec), pace=Pace(jitter=0.4))
    simulation.after(checkpoint_s, lambda: simulation.tell(m.TakeCheckpoint()))
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
        (number,) = whole.checkpoints
        stored = io.BytesIO()
        torch.save(whole.checkpoints[number], stored)
        stored.seek(0)
        checkpoint = torch.load(stored, weights_only=True)
        assert set(checkpoint) == {"coordinator", "shard/0", "shard/1", *(f"worker/{i}" for i in range(4))}
        restored = Simulation.restore(spec, checkpoint, workload=workload(spec), pace=Pace(jitter=0.4))
        restored.run()
        assert torch.equal(final_vector(whole), final_vector(restored))
        for worker in range(4):
            assert torch.equal(whole.workers[worker].replica.flat, restored.workers[worker].replica.flat)
        taken, *told = restored.ledger.events
        assert taken.kind == "checkpoint"
        (is_written,) = [event for event in whole.ledger.events if event.kind == "checkpoint"]
        assert (taken.step, taken.data) == (is_written.step, is_written.data), (
            "it tells of the cut, whenever it was told"
        )
        later = [event for event in whole.ledger.events if event.sequence >= taken.sequence and event != is_written]
        assert [_story(event) for event in later] == [_story(event) for event in told]


@pytest.mark.parametrize("name", EVERY)
def test_a_stopped_job_goes_on_as_if_it_had_never_been_stopped(name: str) -> None:
    spec = job(EVERY[name], scale={"shards": 2})
    whole = Simulation(spec, workload=workload(spec))
    whole.run()
    stopped = Simulation(spec, workload=workload(spec))

    def stop() -> None:
        stopped.tell(m.TakeCheckpoint())
        stopped.tell(m.Stop(reason="interrupted"))

    stopped.after(0.3, stop)
    stopped.run()
    last = max(event.step for event in stopped.ledger.events)
    assert last < spec.budget.steps, "it must not claim steps it has not made"
    (number,) = stopped.checkpoints
    restored = Simulation.restore(spec, stopped.checkpoints[number], workload=workload(spec))
    restored.run()
    assert torch.equal(final_vector(whole), final_vector(restored))
    assert max(event.step for event in restored.ledger.events) == spec.budget.steps


def test_checkpoints_come_every_so_many_rounds() -> None:
    spec = job({"kind": "local_sgd", "sync_every": 2}, checkpoint={"every_rounds": 4})
    simulation = Simulation(spec, workload=workload(spec))
    simulation.run()
    assert [event.data["round"] for event in simulation.ledger.events if event.kind == "checkpoint"] == [0, 3, 7, 11]
    assert len(simulation.checkpoints) == 4


class KeepingSimulation(Simulation):
    """Counts how often each part of a checkpoint is written, and may refuse to write it."""

    def __init__(self, *arguments: Any, refuse: tuple[tuple[int, str], ...] = (), **world: Any) -> None:
        self.written: Counter[tuple[int, str]] = Counter()
        self._refuse = refuse
        super().__init__(*arguments, **world)

    def write_part(self, core: Core, part: KeepPart) -> str | None:
        written = part.checkpoint, str(core.address)
        self.written[written] += 1
        return "no space left on device" if written in self._refuse else super().write_part(core, part)


@pytest.mark.parametrize("name", ["bsp", "selsync-overlap", "ssp", "local_sgd"])
def test_a_repeated_request_does_not_touch_a_checkpoint(name: str) -> None:
    """Each request comes again when the checkpoint is complete and training has gone on."""
    spec = job(EVERY[name], checkpoint={"every_rounds": 4}, scale={"shards": 2})
    faults = tuple(Fault(action="duplicate", where="CheckpointRequest", nth=n, delay_s=0.05 * n) for n in range(1, 7))
    simulation = KeepingSimulation(spec, workload=workload(spec), faults=faults, pace=Pace(jitter=0.3))
    simulation.after(0.1, lambda: simulation.tell(m.TakeCheckpoint()))
    simulation.run()
    assert len(simulation.happened) == 6
    assert {*simulation.written.values()} == {1}, "every part is written once"
    parts = simulation.checkpoints[1]
    restored = Simulation.restore(spec, parts, workload=workload(spec), pace=Pace(jitter=0.3))
    restored.run()
    if name != "ssp":
        assert torch.equal(final_vector(simulation), final_vector(restored)), "it is what it was when it was taken"


@pytest.mark.parametrize("address", ["worker/1", "shard/0", "coordinator"])
def test_a_checkpoint_that_cannot_be_written_is_an_event_and_the_next_is_tried(address: str) -> None:
    spec = job({"kind": "local_sgd", "sync_every": 2}, checkpoint={"every_rounds": 4})
    simulation = KeepingSimulation(spec, workload=workload(spec), refuse=((2, address),))
    simulation.run()
    told = [
        (event.kind, event.data["checkpoint"])
        for event in simulation.ledger.events
        if event.kind.startswith("checkpoint")
    ]
    assert told == [("checkpoint", 1), ("checkpoint_failed", 2), ("checkpoint", 3), ("checkpoint", 4)]
    (failed,) = [event.data for event in simulation.ledger.events if event.kind == "checkpoint_failed"]
    assert (failed["who"], failed["why"]) == (address, "no space left on device")
    assert sorted(number for number, parts in simulation.checkpoints.items() if "coordinator" in parts) == [1, 3, 4]
    whole = Simulation(spec, workload=workload(spec))
    whole.run()
    assert torch.equal(final_vector(whole), final_vector(simulation)), "training knows nothing of it"


def test_a_job_stops_although_its_last_checkpoint_cannot_be_written() -> None:
    spec = job()
    simulation = KeepingSimulation(spec, workload=workload(spec), refuse=((1, "worker/0"),))

    def stop() -> None:
        simulation.tell(m.TakeCheckpoint())
        simulation.tell(m.Stop(reason="enough"))

    simulation.after(0.1, stop)
    simulation.run()
    assert [event.kind for event in simulation.ledger.events if "checkpoint" in event.kind] == ["checkpoint_failed"]


@pytest.mark.parametrize("name", EVERY)
def test_a_checkpoint_is_of_the_moment_of_its_cut_however_long_it_is_written(name: str) -> None:
    """Decisions are made meanwhile, and members come; what the manifest tells is what the parts are of."""
    spec = job(EVERY[name], checkpoint={"every_rounds": 2}, scale={"workers": 3, "max_workers": 4, "shards": 2})
    rounds, overtaken = [], []

    class Sealing(Simulation):
        def write_part(self, core: Core, part: KeepPart) -> str | None:
            if isinstance(core, Coordinator):
                assert part.cut is not None
                restored = Coordinator(COORDINATOR, self.spec)
                restored.load_state_dict(part.state)
                assert part.cut[:2] == (restored.steps_made, restored.last_round)
                assert part.cut.workers == restored.view.members
                parts = {Address.parse(who): found for who, found in self.checkpoints[part.checkpoint].items()}
                assert {*parts} == {*part.cut.workers, *part.cut.servers}
                if not restored.pacing.applies_on_arrival:
                    assert {parts[who]["step"] for who in part.cut.workers} == {restored.pacing.next_step}
                rounds.append((part.checkpoint, part.cut.step, part.cut.round))
                overtaken.append(core.steps_made > part.cut.step)
            return super().write_part(core, part)

    simulation = Sealing(spec, workload=workload(spec), pace=Pace(jitter=0.4))
    for number in range(4):
        simulation.after(0.1 + 0.05 * number, lambda: simulation.tell(m.TakeCheckpoint()))
    simulation.after(0.12, simulation.add_worker)
    simulation.run()
    told = [event for event in simulation.ledger.events if event.kind == "checkpoint"]
    assert rounds == [(event.data["checkpoint"], event.step, event.data["round"]) for event in told]
    assert rounds
    assert any(overtaken), "nobody waits for what is written"


def test_a_number_that_is_taken_is_passed_over() -> None:
    spec = job(checkpoint={"every_rounds": 10})
    simulation = Simulation(spec, workload=workload(spec))
    simulation.coordinator.checkpoints.pass_over(7)
    simulation.run()
    assert sorted(simulation.checkpoints) == [8, 9, 10]


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
    return event.kind, event.step, {k: v for k, v in event.data.items() if k != "train/samples_per_s"}

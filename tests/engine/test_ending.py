"""The end of a job: the final model is saved before anybody goes, whoever dies on the way out."""

from __future__ import annotations

import pytest

from raysync.address import Address, worker
from raysync.engine import messages as m
from raysync.engine.effects import Send
from raysync.sim import Fault
from tests.audit import AuditedSimulation
from tests.jobs import EVERY, job, workload


def ending(name: str, *faults: Fault, workers: int = 3, **changes: object) -> AuditedSimulation:
    spec = job(EVERY[name], budget={"steps": 8}, scale={"workers": workers, "shards": 2}, **changes)
    return AuditedSimulation(spec, workload=workload(spec), faults=faults, durable=True, max_time_s=600)


@pytest.mark.parametrize("deaths", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["bsp", "selsync", "selsync-overlap", "ssp", "fedavg-half"])
def test_when_the_leader_dies_while_it_saves_another_saves(name: str, deaths: int) -> None:
    """Up to the death of everybody, and of the first who came after them."""
    faults = tuple(Fault(action="kill", where="worker.saving", nth=nth, delay_s=0.4) for nth in range(1, deaths + 1))
    simulation = ending(name, *faults)
    result = simulation.run()
    simulation.check()
    assert len(simulation.happened) == deaths
    assert len(simulation.saved_by) == 1
    assert "eval/loss" in result.metrics
    last = [event for event in result.events if event.kind == "metrics"][-1]
    assert (last.step, last.worker) == (8, simulation.saved_by[0]), "the last evaluation is of the model that was saved"


@pytest.mark.parametrize("fault", ["drop", "duplicate", "delay"])
@pytest.mark.parametrize("message", ["Farewell", "Goodbye", "SaveModel"])
def test_the_end_survives_lost_words(message: str, fault: str) -> None:
    faults = [Fault(action=fault, where=message, nth=nth) for nth in (1, 2)]
    simulation = ending("selsync", *faults, Fault(action="kill", where="worker.saving"))
    simulation.run()
    assert simulation.saved_by


def test_nobody_goes_before_the_model_is_saved() -> None:
    simulation, gone = ending("bsp"), list[bool]()

    def watch(sender: Address, send: Send) -> None:
        if isinstance(send.message, m.Goodbye):
            gone.append(bool(simulation.saved_by))

    simulation._on_send = watch
    simulation.run()
    assert len(gone) >= 3
    assert all(gone)


def test_a_lone_worker_taken_for_dead_at_its_end_still_saves() -> None:
    simulation = ending("bsp", workers=1)
    simulation.run_until(lambda sim: sim.workers[0].step == 7)
    simulation.after(0.0, lambda: simulation.tell(m.Died(who=worker(0))))
    simulation.run()
    assert simulation.saved_by


def test_a_job_that_is_stopped_before_it_began_has_ended_without_a_model() -> None:
    simulation = ending("bsp")
    simulation.coordinator.handle(m.Stop(reason="enough"))
    assert simulation.coordinator.finished
    assert simulation.saved_by == []


def test_a_spent_budget_does_not_end_a_job_without_a_model() -> None:
    spent = job(EVERY["bsp"], budget={"steps": 8, "time_s": 0.001})
    simulation = AuditedSimulation(spent, workload=workload(spent), durable=True)
    simulation.coordinator.advance(1.0)
    assert not simulation.coordinator.finished
    simulation.run()
    assert simulation.saved_by

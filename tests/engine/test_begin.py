"""Knobs around the beginning: turned before the first step, or after the checkpoint a job goes back to."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from raysync.address import COORDINATOR
from raysync.engine import messages as m
from raysync.engine.coordinator import Coordinator
from raysync.engine.coordinator.knob_board import KnobBoard
from raysync.knobs import Knobs, initial_knobs, turn
from raysync.sim import Simulation
from tests.jobs import EVERY, final_vector, job, members, workload


@pytest.mark.parametrize("name", ["bsp", "selsync", "local_sgd", "ssp"])
def test_what_is_turned_before_the_first_step_is_in_force_from_it_on(name: str) -> None:
    turned, submitted = job(EVERY[name]), job(EVERY[name], optimizer={"kind": "sgd", "lr": 0.01})
    early, plain = (Simulation(spec, workload=workload(spec)) for spec in (turned, submitted))
    early.turn(lr=0.01)
    early.run()
    plain.run()
    assert torch.equal(final_vector(early), final_vector(plain)), "as if it had been submitted so"
    (event,) = [event for event in early.ledger.events if event.kind == "knobs"]
    assert (event.step, event.knob_version, event.data["after"]) == (0, 1, {"lr": 0.01})


def test_workers_turned_before_the_first_step_are_waited_for() -> None:
    spec = job(scale={"workers": 4, "min_workers": 1, "max_workers": 6})
    core = Coordinator(COORDINATOR, spec, waits_for_begin=True)
    asked = turn(spec, initial_knobs(spec), {"workers": 2, "pause": True})
    for sender in members(0, 1):
        core.handle(m.Join(sender=sender, num_samples=200, num_elements=37))
    assert core.view.number == 0, "nothing happens before it is told to begin"
    core.handle(m.Begin(knobs=asked, workers=2))
    assert core.view.members == members(0, 1)
    assert (core.knobs, core.board.paused) == (asked, True)
    core.handle(m.Begin(knobs=asked, workers=2))
    assert core.knobs.version == 1, "said twice, it is done once"


def reborn(spec: Any, state: Any, begin: Knobs | None) -> Simulation:
    simulation = Simulation.restore(spec, state, workload=workload(spec))
    if begin is not None:
        simulation.tell(m.Begin(knobs=begin))
    return simulation


@pytest.mark.parametrize("name", ["selsync", "ssp"])
def test_a_knob_turned_after_the_checkpoint_survives_going_back_to_it(name: str) -> None:
    spec = job(EVERY[name])
    simulation = Simulation(spec, workload=workload(spec))
    simulation.turn(lr=0.02)
    simulation.after(0.1, lambda: simulation.tell(m.TakeCheckpoint()))
    simulation.after(0.2, lambda: simulation.turn(lr=0.005))
    simulation.run()
    (number,) = simulation.checkpoints
    asked = simulation.coordinator.knobs
    assert (asked.version, asked.values["lr"]) == (2, 0.005)
    again = reborn(spec, simulation.checkpoints[number], asked)
    again.run()
    (event,) = [event for event in again.ledger.events if event.kind == "knobs"]
    assert (event.knob_version, event.data["before"], event.data["after"]) == (2, {"lr": 0.02}, {"lr": 0.005})
    assert event.data["why"] == "turned after the checkpoint it went on from"
    assert again.coordinator.knobs == asked
    again.coordinator.board.turn({"lr": 0.03}, expected_version=2)
    assert again.coordinator.board.ahead().version == 3, "no version comes twice"


def board(**changes: Any) -> KnobBoard:
    found = KnobBoard(job({"kind": "selsync", "delta": 0.3}))
    for name, value in changes.items():
        found.turn({name: value}, None)
    return found


@pytest.mark.parametrize(
    ("waits", "version", "adopted", "delta"),
    [
        ({}, 0, False, 0.3),  # nothing new
        ({}, 3, True, 0.9),
        ({"delta": 0.5}, 1, False, 0.5),  # as new as what waits
        ({"delta": 0.5}, 2, True, 0.9),
    ],
)
def test_a_board_adopts_what_is_newer(waits: dict[str, Any], version: int, adopted: bool, delta: float) -> None:
    found = board(**waits)
    knobs = Knobs(version, {**found.knobs.values, "delta": 0.9})
    assert found.adopt(knobs, 7, "why") is adopted
    again = board()
    again.load_state_dict(found.state_dict())
    for one in (found, again):
        ahead = one.ahead()
        assert (ahead.version, ahead.values["delta"]) == (max(version, len(waits)), delta)
        turned = one.apply()
        assert one.knobs == ahead
        assert one.spec.strategy.delta == delta  # type: ignore[union-attr]
        assert [found.told.why for found in turned] == (["why"] if adopted else [None] * len(waits))


def test_knobs_that_came_back_to_where_they_were_still_have_a_new_version() -> None:
    found = board()
    assert found.adopt(Knobs(2, found.knobs.values))
    (turned,) = found.apply()
    assert (turned.version, turned.after, found.knobs.version) == (2, {}, 2)

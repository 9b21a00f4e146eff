"""SSP: no read is staler than the bound, and the fast worker really waits."""

from __future__ import annotations

import random
from typing import Any

import pytest

from raysync.address import worker
from raysync.engine import messages as m
from raysync.engine.core import Core
from raysync.engine.effects import Send
from raysync.sim import Pace, Simulation
from tests.jobs import job, workload


class StalenessWitness(Simulation):
    """Looks into the shards at every read: which clocks of which live worker are in what the reader gets."""

    def __init__(self, *arguments: Any, **world: Any) -> None:
        self.stalest = 0
        self.reads = 0
        super().__init__(*arguments, **world)

    def _deliver(self, send: Send, sender: Core) -> None:
        if isinstance(send.message, m.Pull):
            pull, shard = send.message, self.cores[send.to]
            applied = shard.ledgers[pull.block].applied  # type: ignore[union-attr]
            slowest = min(applied.get(member, -1) for member in self.coordinator.view.members)
            self.stalest = max(self.stalest, pull.round - slowest)
            self.reads += 1
        super()._deliver(send, sender)


def _run(seed: int, bound: int, **pace: Any) -> StalenessWitness:
    spec = job(
        {"kind": "ssp", "staleness_bound": bound},
        seed=seed,
        budget={"steps": 12},
        scale={"workers": 3, "shards": 2, "block_bytes": 80},
    )
    simulation = StalenessWitness(spec, workload=workload(spec), pace=Pace(step_s=0.02, **pace))
    result = simulation.run()
    assert result.staleness_max <= bound
    return simulation


@pytest.mark.parametrize("part", range(10))
def test_no_read_is_staler_than_the_bound(part: int) -> None:
    """200 random straggler schedules; what the shards hold is checked, not what the coordinator says."""
    stalest = dict.fromkeys(range(4), 0)
    for seed in range(20 * part, 20 * part + 20):
        choose = random.Random(seed)
        bound = seed % 4
        slow = {number: choose.choice((1.0, 1.0, 2.0, 8.0)) for number in range(3)}
        simulation = _run(
            seed, bound, jitter=choose.choice((0.0, 0.5)), hiccup_share=choose.choice((0.0, 0.2)), slow=slow
        )
        assert simulation.reads > 0
        assert simulation.stalest <= bound, (
            f"seed {seed}: a read missed {simulation.stalest} clocks, the bound is {bound}"
        )
        stalest[bound] = max(stalest[bound], simulation.stalest)
    assert stalest[1] == 1, "the schedules do use up the bound"
    assert stalest[2] == 2


def test_fast_worker_blocks_at_the_bound() -> None:
    spec = job({"kind": "ssp", "staleness_bound": 3}, budget={"steps": 40}, scale={"workers": 2})
    simulation = Simulation(spec, workload=workload(spec), pace=Pace(step_s=0.01, slow={1: 10.0}))
    lead = 0
    while not simulation.coordinator.finished:
        simulation.run_until(lambda sim, now=simulation.now_s: sim.now_s > now or sim.coordinator.finished)
        clocks = simulation.coordinator.pacing.gate.clocks
        if len(clocks) == 2:
            lead = max(lead, clocks[worker(0)] - clocks[worker(1)])
    assert lead == 4, "three clocks ahead when it reads, and one more computed and pushed before it waits"
    assert simulation.now_s >= 39 * 0.1, "the slow worker sets the pace"


def test_loose_bound_is_faster_than_a_tight_one() -> None:
    times = []
    for bound in (0, 5):
        spec = job({"kind": "ssp", "staleness_bound": bound}, budget={"steps": 60})
        times.append(Simulation(spec, workload=workload(spec), pace=Pace(hiccup_share=0.1)).run().virtual_time_s)
    assert times[1] < 0.8 * times[0]


def test_bound_turns_while_it_runs() -> None:
    spec = job({"kind": "ssp", "staleness_bound": 0}, budget={"steps": 60}, scale={"workers": 2})
    simulation = Simulation(spec, workload=workload(spec), pace=Pace(step_s=0.01, slow={1: 5.0}))
    simulation.after(1.0, lambda: simulation.turn(staleness_bound=6))
    assert simulation.run().staleness_max == 6


def test_each_worker_tells_how_stale_its_last_read_was() -> None:
    spec = job({"kind": "ssp", "staleness_bound": 3}, budget={"steps": 30}, scale={"workers": 3})
    result = Simulation(spec, workload=workload(spec), pace=Pace(step_s=0.02, slow={0: 6.0})).run()
    told: dict[int | None, list[float]] = {}
    for event in result.events:
        if event.kind == "metrics" and "staleness/last" in event.data:
            told.setdefault(event.worker, []).append(event.data["staleness/last"])
    assert {*told} == {0, 1, 2}
    assert max(told[1]) == max(told[2]) == 3.0, "the fast ones wait at the bound"
    assert max(told[0]) < 3.0, "the slow one reads what is new"

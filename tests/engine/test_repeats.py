"""What is said again, and what is not: a push is asked after, and only a shard that lacks it gets it twice."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from raysync.address import Address
from raysync.engine import messages as m
from raysync.engine.effects import Send
from raysync.sim import Fault, Pace, Simulation
from tests.jobs import EVERY, job, workload


class Impatient(Simulation):
    """Every worker repeats itself all the time, as hosts do after a long wait or when a newcomer is introduced."""

    def __init__(self, *arguments: Any, **world: Any) -> None:
        self.pushes: Counter[tuple[Address, int, int]] = Counter()
        super().__init__(*arguments, **world, on_send=self._watch)

    def _watch(self, sender: Address, send: Send) -> None:
        message = send.message
        if isinstance(message, m.Push):
            self.pushes[message.sender, message.block, message.round] += 1

    def pester(self) -> None:
        for worker in list(self.workers.values()):
            self.carry_out(worker, worker.retry())
        self.after(0.003, self.pester)


@pytest.mark.parametrize("name", EVERY)
def test_waiting_for_a_straggler_repeats_no_push(name: str) -> None:
    spec = job(EVERY[name], compression={"push": {"kind": "topk", "ratio": 0.2}})
    simulation = Impatient(spec, workload=workload(spec), pace=Pace(slow={3: 20.0}))
    simulation.after(0.0, simulation.pester)
    simulation.run()
    assert set(simulation.pushes.values()) == {1}
    sent = sum(worker.round.bytes_up for worker in simulation.workers.values())
    assert sent == simulation.ledger.bytes_up, "and its bytes are counted once"


@pytest.mark.parametrize("name", ["bsp", "selsync", "ssp"])
def test_a_push_that_was_lost_is_sent_again_and_no_other(name: str) -> None:
    spec = job(EVERY[name], scale={"shards": 2})
    simulation = Impatient(spec, workload=workload(spec), faults=(Fault(action="drop", where="Push", nth=9),))
    simulation.run()
    assert Counter(simulation.pushes.values())[2] == 1
    assert max(simulation.pushes.values()) == 2


def test_a_shard_that_lost_pushes_with_its_process_gets_them_again() -> None:
    spec = job({"kind": "bsp"}, scale={"shards": 2})
    kill = Fault(action="kill", where="shard.received", nth=20)
    simulation = Impatient(spec, workload=workload(spec), faults=(kill,))
    simulation.run()
    assert simulation.happened
    assert max(simulation.pushes.values()) == 2

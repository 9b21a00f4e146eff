"""Steps that do not wait for who is late: they are made without it, and what it has to send counts once, in its next round."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from raysync.address import worker
from raysync.compress.registry import decode
from raysync.engine import messages as m
from raysync.engine.pacing.lateness import Lateness
from raysync.errors import KnobError, SpecError
from raysync.knobs import initial_knobs, turn
from raysync.sim import Fault, Pace, Simulation
from tests.audit import AuditedSimulation
from tests.jobs import SYNCHRONOUS, WatchedSimulation, final_vector, job, workload

ONEBIT = {"push": {"kind": "onebit", "chunk": 32}, "pull": {"kind": "onebit", "chunk": 32}}
TOPK = {"push": {"kind": "topk", "ratio": 0.1}, "pull": {"kind": "identity"}}
UNEVEN = Pace(step_s=0.1, jitter=0.0, hiccup_share=0.0, slow={0: 5.0})
"""One worker at a fifth of the others' speed."""
MAY_LEAVE = [name for name in SYNCHRONOUS if name not in ("selsync-overlap", "selsync-gradients")]


def late(simulation: Simulation) -> list[Any]:
    """Return the decisions that were made without somebody."""
    decisions = [event for event in simulation.ledger.events if event.kind == "decision"]
    return [event for event in decisions if "came too late" in event.body.reason]


@pytest.mark.parametrize("compression", [{}, ONEBIT, TOPK], ids=["identity", "onebit", "topk"])
@pytest.mark.parametrize("name", MAY_LEAVE)
def test_an_uneven_worker_holds_nobody_up_and_nothing_of_its_work_is_lost(
    name: str, compression: dict[str, Any]
) -> None:
    took: dict[float | None, float] = {}
    for deadline in (None, 0.05):
        spec = job(SYNCHRONOUS[name], compression=compression, straggler_deadline=deadline, budget={"steps": 40})
        simulation = AuditedSimulation(spec, workload=workload(spec), pace=UNEVEN)
        took[deadline] = simulation.run().virtual_time_s
        simulation.check()
        assert bool(late(simulation)) == (deadline is not None)
        shown = {core.shared.visible.numpy().tobytes() for core in simulation.workers.values()}
        assert len(shown) == 1, "all end with the same model"
    assert took[0.05] < 0.5 * took[None], took


@pytest.mark.parametrize("name", MAY_LEAVE)
def test_replicas_are_equal_after_every_round_whoever_took_part_in_it(name: str) -> None:
    spec = job(SYNCHRONOUS[name], compression=ONEBIT, straggler_deadline=0.05, scale={"shards": 2})
    simulation = WatchedSimulation(spec, pace=UNEVEN)
    simulation.run()
    assert late(simulation)
    for seen in simulation.after_round.values():
        assert len({vector.numpy().tobytes() for vector in seen.values()}) == 1


class CountingSimulation(Simulation):
    """Adds up every gradient that the slow worker computes, and all that it pushes."""

    def __init__(self, *arguments: Any, **world: Any) -> None:
        self.computed = self.pushed = torch.zeros(0, dtype=torch.float64)
        self.pushes: list[tuple[int, int]] = []
        super().__init__(*arguments, **world, on_send=self._count)

    def _made(self, address: Any) -> Any:
        core = super()._made(address)
        if address == worker(0):
            compute = core.replica.compute

            def counted(indices: Any, seed: int) -> Any:
                loss = compute(indices, seed)
                self.computed = self.computed + core.replica.grad.double()
                return loss

            self.computed = self.pushed = torch.zeros(len(core.replica.grad), dtype=torch.float64)
            core.replica.compute = counted
        return core

    def _count(self, sender: Any, send: Any) -> None:
        push = send.message
        if isinstance(push, m.Push) and push.sender == worker(0):
            block = self.workers[0].shared.blocks[push.block]
            self.pushed[block.start : block.stop] += decode(push.payload).double()
            self.pushes.append((push.block, push.round))


@pytest.mark.parametrize("compression", [{}, ONEBIT, TOPK], ids=["identity", "onebit", "topk"])
def test_all_that_a_late_worker_computes_is_pushed_once_or_still_held(compression: dict[str, Any]) -> None:
    """The slow worker pushes about every fifth round, and in the last one."""
    spec = job({"kind": "bsp"}, compression=compression, straggler_deadline=0.05, budget={"steps": 30})
    simulation = CountingSimulation(spec, workload=workload(spec), pace=UNEVEN)
    simulation.run()
    assert len(simulation.pushes) == len({*simulation.pushes})
    rounds = sorted({round for _, round in simulation.pushes})
    assert 5 <= len(rounds) <= 12
    assert rounds[-1] == 29
    shared, held = simulation.workers[0].shared, torch.zeros_like(simulation.pushed)
    for (index, _), rest in shared.feedback.residuals().items():
        held[shared.blocks[index].start : shared.blocks[index].stop] = rest.double()
    assert float((simulation.computed - simulation.pushed - held).abs().max()) < 1e-4
    assert float(simulation.computed.abs().max()) > 1.0
    assert compression or float(held.abs().max()) == 0.0, "without a codec nothing is left behind"


def test_without_a_deadline_nothing_changes_and_one_that_nobody_misses_changes_nothing() -> None:
    found = []
    for deadline in (None, 100.0):
        spec = job({"kind": "selsync", "warmup_steps": 2, "delta": 0.03}, straggler_deadline=deadline)
        simulation = Simulation(spec, workload=workload(spec), pace=UNEVEN)
        simulation.run()
        assert not late(simulation)
        found.append(final_vector(simulation))
    assert torch.equal(*found)


def test_the_deadline_turns_as_a_knob() -> None:
    spec = job({"kind": "bsp"}, budget={"steps": 100}, straggler_deadline=3600)
    simulation = Simulation(spec, workload=workload(spec), pace=UNEVEN)
    simulation.after(5.0, lambda: simulation.turn(straggler_deadline=0.05))
    simulation.after(9.0, lambda: simulation.turn(straggler_deadline=3600.0))
    simulation.run()
    steps = [event.step for event in late(simulation)]
    assert steps
    assert 9 <= min(steps) <= 12
    assert max(steps) < 60


@pytest.mark.parametrize(
    "fault",
    [
        *(Fault(action="kill", where="coordinator.decided", nth=nth) for nth in (5, 9, 20)),
        *(Fault(action="kill", where="coordinator.sending", nth=nth) for nth in (6, 12, 25)),
        *(Fault(action="drop", where="CatchUp", nth=nth) for nth in (1, 2, 3)),
        *(Fault(action="delay", where="CatchUp", nth=nth, delay_s=1.3) for nth in (1, 2)),
        *(Fault(action="duplicate", where="CatchUp", nth=nth, delay_s=0.7) for nth in (1, 2)),
        *(Fault(action="kill", where="worker.reported", nth=nth) for nth in (4, 11)),
        *(Fault(action="kill", where="shard.closed", nth=nth) for nth in (3, 30)),
    ],
    ids=lambda fault: f"{fault.action}-{fault.where}-{fault.nth}",
)
def test_what_goes_wrong_meanwhile_costs_nothing_more(fault: Fault) -> None:
    spec = job({"kind": "bsp"}, compression=ONEBIT, straggler_deadline=0.05, scale={"workers": 3, "replicas": 1})
    simulation = AuditedSimulation(spec, workload=workload(spec), pace=UNEVEN, faults=(fault,), max_time_s=600)
    simulation.run()
    simulation.check()
    assert simulation.happened == [fault]
    assert late(simulation)


def test_a_checkpoint_waits_for_all_and_goes_on_the_same() -> None:
    spec = job({"kind": "bsp"}, compression=ONEBIT, straggler_deadline=0.05, checkpoint={"every_rounds": 10})
    simulation = AuditedSimulation(spec, workload=workload(spec), pace=UNEVEN)
    simulation.run()
    simulation.check()
    assert late(simulation)
    complete = [parts for parts in simulation.checkpoints.values() if "coordinator" in parts]
    assert complete
    again = Simulation.restore(spec, complete[0], workload=workload(spec), pace=UNEVEN)
    assert again.run().metrics["eval/loss"] > 0


def test_where_nobody_can_be_left_behind_it_is_refused_with_what_to_change() -> None:
    cases: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"kind": "ssp", "staleness_bound": 2}, {}, "no worker waits"),
        ({"kind": "selsync", "delta": 0.3, "overlap": True}, {}, r"leave strategy\.overlap"),
        ({"kind": "selsync", "delta": 0.3, "aggregate": "gradients"}, {}, "no worker waits"),
        ({"kind": "bsp"}, {"compression": {"error_feedback": False}}, r"set compression\.error_feedback"),
        (
            {"kind": "local_sgd", "sync_every": 3},
            {"scale": {"stages": 2}, "schedule": {"kind": "gpipe"}},
            "stages of a pipeline wait",
        ),
    ]
    for strategy, changes, words in cases:
        with pytest.raises(SpecError, match=words):
            job(strategy, straggler_deadline=1.0, **changes)
        spec = job(strategy, **changes)
        with pytest.raises(KnobError, match="this job has no such knob"):
            turn(spec, initial_knobs(spec), {"straggler_deadline": 1.0})
    ahead = job({"kind": "bsp"})
    with pytest.raises(KnobError, match="this job has no such knob"):
        turn(ahead, initial_knobs(ahead), {"straggler_deadline": 1.0})
    spec = job({"kind": "bsp"}, straggler_deadline=3600)
    assert turn(spec, initial_knobs(spec), {"straggler_deadline": 1.0}).values["straggler_deadline"] == 1.0
    with pytest.raises(KnobError, match="set a long one"):
        turn(spec, initial_knobs(spec), {"straggler_deadline": None})
    free = job({"kind": "selsync", "delta": 0.3})
    assert turn(free, initial_knobs(free), {"straggler_deadline": 1.0}).values["straggler_deadline"] == 1.0
    with pytest.raises(KnobError):
        turn(spec, initial_knobs(spec), {"straggler_deadline": -1.0})


def test_who_is_behind() -> None:
    lateness = Lateness()
    assert lateness.due_s(3, 0.5) is None
    lateness.reported(worker(1), 3, 10.0)
    lateness.reported(worker(2), 3, 10.4)
    assert (lateness.due_s(3, 0.5), lateness.due_s(3, None), lateness.due_s(4, 0.5)) == (10.5, None, None)
    lateness.leave([worker(0)])
    lateness.over(3)
    assert (lateness.behind, lateness.due_s(3, 0.5)) == (frozenset({worker(0)}), None)
    lateness.reported(worker(0), 4, 12.0)
    assert not lateness.behind

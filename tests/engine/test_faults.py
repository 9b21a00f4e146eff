"""Random fault schedules, a third of a thousand here and the rest in the matrix, and the named faults one by one."""

from __future__ import annotations

from collections import Counter

import pytest

from raysync.address import COORDINATOR, Address, shard, worker
from raysync.sim import Fault, Simulation, random_faults
from raysync.sim.faults import MESSAGES, POINTS
from tests.audit import AuditedSimulation
from tests.faults import run_seed
from tests.jobs import EVERY, job, members, workload

SCHEDULES, PARTS = 1008, 24
_SLICE = 8


@pytest.mark.parametrize(
    "part", [*range(_SLICE), *(pytest.param(part, marks=pytest.mark.matrix) for part in range(_SLICE, PARTS))]
)
def test_random_schedules_end_with_balanced_books(part: int) -> None:
    size = SCHEDULES // PARTS
    happened = sum(len(run_seed(seed).happened) for seed in range(part * size, (part + 1) * size))
    assert happened >= size, "the schedules must really break something"


@pytest.mark.parametrize("seed", [2076])
def test_schedules_that_once_never_ended(seed: int) -> None:
    """2076: the last worker is taken for dead while a leaver, who owes no more rounds, is still on its way out."""
    run_seed(seed, is_troubled=False)


@pytest.mark.parametrize("seed", [26, 458, 1208])
def test_schedules_that_once_lost_something(seed: int) -> None:
    """26: whoever knew of an open round is gone when a coordinator takes over, and its number was given twice. 458: one
    that had taken leave of a coordinator that died is waited for by the next. 1208: the newest view is known only to one
    that cannot be asked, and the next one had its number.
    """
    run_seed(seed)


@pytest.mark.parametrize("for_s", [0.2, 1.5, 5.0])
@pytest.mark.parametrize("who", [COORDINATOR, shard(0), shard(2), worker(0)])
@pytest.mark.parametrize("name", ["bsp", "selsync", "ssp", "fedavg-half"])
@pytest.mark.parametrize("how", ["frozen", "cut off"])
def test_one_that_stands_still_or_is_cut_off_costs_nothing(how: str, name: str, who: Address, for_s: float) -> None:
    """For less than it takes to notice, for longer, and for so long that a worker is given up."""
    scale = {"workers": 3, "shards": 2, "replicas": 1, "block_bytes": 80}
    spec = job(EVERY[name], budget={"steps": 30}, scale=scale)
    simulation = AuditedSimulation(spec, workload=workload(spec), durable=True, max_time_s=300)
    strike = {"frozen": lambda: simulation.freeze(who, for_s), "cut off": lambda: simulation.cut_off([who], for_s)}
    simulation.after(0.3, strike[how])
    result = simulation.run()
    simulation.check()
    decided = [event.step for event in result.events if event.kind == "decision"]
    assert decided == list(range(30)) or name == "ssp"


def test_a_node_with_a_worker_a_shard_and_the_coordinator_is_lost() -> None:
    scale = {"workers": 3, "shards": 2, "replicas": 1, "block_bytes": 80}
    spec = job(EVERY["selsync"], budget={"steps": 30}, scale=scale)
    simulation = AuditedSimulation(spec, workload=workload(spec), durable=True, max_time_s=300)
    simulation.after(0.3, lambda: simulation.lose([worker(0), COORDINATOR, shard(0), shard(3)]))
    result = simulation.run()
    simulation.check()
    assert [event.step for event in result.events if event.kind == "decision"] == list(range(30))
    assert shard(0) not in simulation.coordinator.view.servers


def test_schedules_cover_all_points_and_messages() -> None:
    planned: Counter[str] = Counter()
    for seed in range(SCHEDULES):
        planned.update(fault.where for fault in random_faults(seed, 4, 15))
    assert set(planned) == {*POINTS, *MESSAGES}


def test_seed_replays_exactly() -> None:
    first, second = run_seed(31), run_seed(31)
    assert first.ledger.events == second.ledger.events
    assert first.happened == second.happened


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("name", ["bsp", "selsync", "selsync-overlap", "ssp", "fedavg-half"])
def test_kill_at_every_point(name: str, point: str) -> None:
    judged, kept = (
        {"every": 1, "on": "evaluator"},
        {"every_rounds": 2 if point.endswith((".writing", ".cut")) else None},
    )
    spec = job(EVERY[name], budget={"steps": 12}, scale={"workers": 3, "shards": 2}, eval=judged, checkpoint=kept)
    simulation = AuditedSimulation(
        spec, workload=workload(spec), faults=tuple(Fault(action="kill", where=point, nth=n) for n in (1, 7))
    )
    simulation.run()
    simulation.check()
    assert simulation.happened, f"{point} never came up"


@pytest.mark.parametrize("action", ["drop", "duplicate", "delay", "reorder"])
@pytest.mark.parametrize(
    "message",
    ["Join", "Welcome", "Fetch", "Init", "NeedInit", "State", "Report", "Decision", "Push", "Update", "NewView"],
)
@pytest.mark.parametrize("name", ["selsync-overlap", "ssp"])
def test_message_faults_one_by_one(name: str, message: str, action: str) -> None:
    spec = job(EVERY[name], budget={"steps": 8}, scale={"workers": 3, "shards": 2, "block_bytes": 80})
    faults = tuple(Fault(action=action, where=message, nth=nth) for nth in (1, 2))
    simulation = AuditedSimulation(spec, workload=workload(spec), faults=faults)
    simulation.run()
    simulation.check()
    assert len(simulation.happened) == 2


def test_everybody_dies_and_the_job_goes_on() -> None:
    spec = job({"kind": "local_sgd", "sync_every": 3}, scale={"workers": 2, "shards": 2})
    simulation = AuditedSimulation(
        spec, workload=workload(spec), faults=(Fault(action="drop", where="Goodbye", nth=1),)
    )
    simulation.after(0.3, lambda: [simulation.kill(address, 0.5) for address in list(simulation.cores)])
    result = simulation.run()
    simulation.check()
    assert sum(event.kind == "decision" for event in result.events) == 30
    assert sorted(simulation.workers) == [2, 3]


def test_worker_declared_dead_comes_back_with_its_residual() -> None:
    spec = job({"kind": "local_sgd", "sync_every": 2}, scale={"workers": 3})
    simulation = AuditedSimulation(
        spec, workload=workload(spec), faults=(Fault(action="suspect", where="worker.pushed", nth=4, delay_s=0.001),)
    )
    simulation.run()
    simulation.check()
    assert simulation.coordinator.view.members == members(0, 1, 2), "nobody was replaced"
    views = [event.data for event in simulation.ledger.events if event.kind == "view"]
    assert [len(view["members"]) for view in views] == [3, 2, 3]


def test_auditor_notices_a_doubled_push(monkeypatch: pytest.MonkeyPatch) -> None:
    """The auditor itself must be able to fail: let a server apply a push twice."""
    from raysync.engine.server.block import ParameterBlock

    move = ParameterBlock.move
    monkeypatch.setattr(
        ParameterBlock, "move", lambda block, mean, lr: (move(block, mean.clone(), lr), move(block, mean, lr))
    )
    spec = job()
    simulation = AuditedSimulation(spec, workload=workload(spec))
    simulation.run()
    with pytest.raises(AssertionError, match="off"):
        simulation.check()


def test_auditor_notices_a_lost_update(monkeypatch: pytest.MonkeyPatch) -> None:
    from raysync.engine.training.shared_vector import SharedVector

    payload = SharedVector.payload

    def forgetful(self: SharedVector, block, round, kind, codec, seed):  # type: ignore[no-untyped-def]
        if round == 3:
            self._replica.grad.zero_()
            self.feedback._pending.clear()
            self.feedback.squeeze(
                (block.index, kind), round, self._replica.grad[block.start : block.stop] + 1, codec, seed
            )
            self.feedback._pending.clear()
        return payload(self, block, round, kind, codec, seed)

    monkeypatch.setattr(SharedVector, "payload", forgetful)
    spec = job()
    simulation = AuditedSimulation(spec, workload=workload(spec))
    simulation.run()
    with pytest.raises(AssertionError, match="neither applied nor held"):
        simulation.check()


def test_deadlock_is_reported_with_the_state_of_everybody() -> None:
    from raysync.errors import Deadlock

    spec = job(scale={"workers": 2})
    simulation = Simulation(spec, workload=workload(spec), max_time_s=5)
    simulation.turn(pause=True)
    with pytest.raises(Deadlock, match="worker/0 deciding"):
        simulation.run()

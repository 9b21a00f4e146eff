"""What every strategy owes, read from the union: a new member is judged by the same law without another line here."""

from __future__ import annotations

import json
import pickle
from typing import Any, get_args

import pytest
import torch

from raysync.errors import SpecError
from raysync.sim import Fault, Pace, Simulation, random_faults
from raysync.spec import JobSpec, parse_spec
from raysync.sync import AnyStrategy, Choice, StepContext, Strategy
from tests import golden
from tests.audit import AuditedSimulation
from tests.engine.test_mesh import CASES
from tests.faults import STRATEGIES as DRAWN
from tests.jobs import EVERY, WatchedSimulation, final_vector, job, members, workload

MEMBERS: tuple[type[Strategy], ...] = get_args(get_args(AnyStrategy)[0])


def _spec(kind: str, **changes: Any) -> JobSpec:
    return job({"kind": kind}, **changes)


KINDS = [str(member.model_fields["kind"].default) for member in MEMBERS]
LOCK_STEP = [kind for kind in KINDS if _spec(kind).strategy.needs.pacing == "lock_step"]


def _context(step: int, workers: int, memory: dict[str, float] | None = None) -> StepContext:
    values = tuple((0.01 * (step % 7 + worker),) * 2 for worker in range(workers))
    return StepContext(step, step - 5, members(*range(workers)), values, 200, 12, lambda _: 0.1, 7, memory or {})


def test_members_are_found() -> None:
    assert len(KINDS) >= 6
    in_mesh = {case[-1]["kind"] for case in CASES}
    drawn = {strategy["kind"] for strategy in DRAWN}
    assert drawn | in_mesh == {*KINDS}, "every strategy is drawn in the fault schedules"
    golden_ones = {strategy["kind"] for strategy in EVERY.values()}
    assert golden_ones | {"async_sparse"} == {*KINDS}, "every strategy whose bits do not hang on time is golden"


@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.__name__)
def test_a_strategy_is_its_configuration(member: type[Strategy]) -> None:
    strategy = member()
    assert strategy.kind == member.__module__.rsplit(".", 1)[1], "kind is the file's name"
    assert member.model_validate_json(strategy.model_dump_json()) == strategy
    assert pickle.loads(pickle.dumps(strategy)) == strategy
    with pytest.raises(ValueError, match=r"frozen|Instance is frozen"):
        strategy.kind = "other"
    with pytest.raises(SpecError, match="there is no such field"):
        parse_spec({"task": {"kind": "quadratic"}, "strategy": {"kind": strategy.kind, "unheard_of": 1}})


@pytest.mark.parametrize("kind", KINDS)
def test_decisions_are_pure_and_have_a_reason(kind: str) -> None:
    strategy = _spec(kind).strategy
    for step in range(60):
        context = _context(step, 1 + step % 4)
        choice = strategy.decide(context)
        assert choice == strategy.decide(context)
        assert isinstance(choice, Choice)
        assert choice.reason
        assert choice.participants is None or {*choice.participants} <= {*context.members}
        json.dumps(dict(choice.memory))


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_job_ends_in_the_same_bits(kind: str) -> None:
    ends = []
    for pace in (Pace(), Pace(), Pace(jitter=0.5)):
        simulation = Simulation(_spec(kind), workload=workload(_spec(kind)), pace=pace)
        simulation.run()
        ends.append(final_vector(simulation))
    assert torch.equal(ends[0], ends[1])
    if kind in LOCK_STEP:
        assert torch.equal(ends[0], ends[2]), "how fast workers are changes nothing"


@pytest.mark.parametrize("kind", KINDS)
def test_with_one_worker_it_is_plain_training(kind: str) -> None:
    """Whatever a strategy does about others, alone there is nobody: with the server's own rule at rest, plain SGD."""
    spec = _spec(kind, scale={"workers": 1}, outer=_plain_outer(kind), budget={"steps": 24})
    plain = _spec("bsp", scale={"workers": 1}, budget={"steps": 24})
    ends = []
    for each in (spec, plain):
        simulation = Simulation(each, workload=workload(each))
        simulation.run()
        ends.append(final_vector(simulation))
    assert torch.allclose(*ends, atol=1e-5)


def _plain_outer(kind: str) -> dict[str, Any] | None:
    spec = _spec(kind)
    return None if spec.server_optimizer is spec.optimizer else {"kind": "sgd", "lr": 1.0}


@pytest.mark.parametrize("kind", LOCK_STEP)
def test_replicas_agree_after_every_round(kind: str) -> None:
    simulation = WatchedSimulation(_spec(kind, compression=golden.CODECS["mixed"], scale={"shards": 2}))
    simulation.run()
    assert simulation.after_round
    for seen in simulation.after_round.values():
        assert all(torch.equal(vector, seen[0]) for vector in seen.values())


@pytest.mark.parametrize("kind", KINDS)
def test_books_balance_and_bounds_hold_under_faults(kind: str) -> None:
    limit = _spec(kind).strategy.needs.staleness_limit
    for seed in range(6):
        spec = _spec(kind, compression=golden.CODECS["onebit"], seed=seed, budget={"steps": 12}, scale={"workers": 3})
        kill = Fault(action="kill", where="worker.computed", nth=3 + seed)
        faults = (*random_faults(seed, 5, 15), kill)
        simulation = AuditedSimulation(spec, workload=workload(spec), faults=faults, pace=Pace(jitter=0.3))
        result = simulation.run()
        simulation.check()
        assert limit is None or result.staleness_max <= limit


@pytest.mark.parametrize("case", golden.cases())
def test_trajectories_are_as_they_were(case: str) -> None:
    saved = json.loads(golden.PATH.read_text())
    if saved["made_with"] != golden.made_with():
        pytest.skip(f"bits were recorded with {saved['made_with']}, this is {golden.made_with()}")
    assert golden.digest(case) == saved["digests"][case]

"""The table of roles: every row names classes that exist, and who may talk to whom goes both ways."""

from __future__ import annotations

import inspect

import pytest

from raysync.address import Address, Role
from raysync.control.roles import ROLES, Death, Room, found
from raysync.engine.core import Core

MEMBERS = [name for name, value in vars(Core).items() if not name.startswith("_") and callable(value)]


def test_every_role_has_a_row() -> None:
    assert {*ROLES} == {*Role}
    for traits in ROLES.values():
        assert isinstance(traits.room, Room)
        assert isinstance(traits.death, Death)


@pytest.mark.parametrize("role", Role)
def test_a_row_names_a_core_that_keeps_the_contract(role: Role) -> None:
    core = found(ROLES[role].core)
    assert inspect.isclass(core)
    assert core.__name__.lower() == role.value
    assert {"handle", "retry", "is_ready", "work", "settle", "state_dict", "load_state_dict"} <= {*MEMBERS}
    for name in (*MEMBERS, "done"):
        assert hasattr(core, name), f"{core.__name__} lacks {name}"
    first, second, *rest = [*inspect.signature(core).parameters.values()]
    assert (first.name, second.name) == ("address", "spec")
    assert "probe" in {parameter.name for parameter in rest}


@pytest.mark.parametrize("role", Role)
def test_a_row_names_a_shell(role: Role) -> None:
    shell = found(ROLES[role].shell)
    assert hasattr(shell, "remote"), "a Ray actor"


@pytest.mark.parametrize("role", Role)
def test_who_is_talked_to_talks_back(role: Role) -> None:
    talks_to = ROLES[role].talks_to
    assert talks_to <= {*Role}
    assert Role.COORDINATOR in talks_to, "every core can be asked for its part of a checkpoint"
    for other in talks_to:
        assert role in ROLES[other].talks_to, f"{role} talks to {other}, who never answers"


def test_only_workers_take_room_and_only_servers_of_parameters_take_the_job_back() -> None:
    """Whoever holds what no other core has takes the job back to a checkpoint; it sits where it costs no worker."""
    assert {role for role, traits in ROLES.items() if traits.room is Room.RESERVED} == {Role.WORKER, Role.STAGE}
    assert {role for role, traits in ROLES.items() if traits.death is Death.RECOVER} == {Role.SHARD}
    assert {role for role, traits in ROLES.items() if traits.death is Death.SUCCEED} == {Role.COORDINATOR}
    assert {role for role, traits in ROLES.items() if traits.runs_user_code} == {*Role} - {Role.COORDINATOR, Role.SHARD}


def test_a_simulation_sends_nothing_past_the_table() -> None:
    from raysync.engine.effects import Send
    from raysync.sim import Fault, Simulation
    from tests.jobs import EVERY, job, workload

    pairs: set[tuple[Role, Role]] = set()

    def watch(sender: Address, send: Send) -> None:
        pairs.add((sender.role, send.to.role))

    for strategy in EVERY.values():
        judged = {"every": 5, "on": "evaluator"}
        spec = job(strategy, scale={"shards": 2}, checkpoint={"every_rounds": 3}, budget={"steps": 12}, eval=judged)
        kill = Fault(action="kill", where="worker.computed", nth=9)
        Simulation(spec, workload=workload(spec), faults=(kill,), on_send=watch).run()
    allowed = {(role, other) for role, traits in ROLES.items() for other in traits.talks_to}
    assert pairs <= allowed
    assert {(Role.WORKER, Role.SHARD), (Role.SHARD, Role.WORKER), (Role.SHARD, Role.COORDINATOR)} <= pairs
    assert {(Role.WORKER, Role.EVALUATOR), (Role.EVALUATOR, Role.COORDINATOR)} <= pairs


def test_a_path_that_leads_nowhere_says_so() -> None:
    with pytest.raises((ImportError, AttributeError), match="nowhere"):
        found("raysync.nowhere:Core")
    with pytest.raises(AttributeError, match="Nobody"):
        found("raysync.engine.worker:Nobody")

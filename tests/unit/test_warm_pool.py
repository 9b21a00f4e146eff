"""Which processes a job takes, and what tells those that compute from the others."""

from __future__ import annotations

from typing import Any

import pytest

from actors.job.packages import prepare
from actors.job.warm_pool import Processes, taken_by
from actors.shell.process import COMPUTING, KIND
from raysync.address import Role
from raysync.control.roles import ROLES
from raysync.spec import parse_spec


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"scale": {"workers": 2}}, Processes(3, 2)),
        ({"scale": {"workers": 4, "shards": 2}}, Processes(6, 2)),
        ({"scale": {"workers": 4, "shards": 2, "shards_in": "workers"}}, Processes(4, 2)),
        ({"scale": {"workers": 2}, "eval": {"on": "evaluator"}}, Processes(4, 2)),
    ],
)
def test_a_job_takes_a_process_for_every_actor_and_its_controller(fields: dict[str, Any], expected: Processes) -> None:
    assert taken_by(parse_spec({"task": {"kind": "digits"}, **fields})) == expected


def test_processes_that_compute_are_told_from_those_that_talk() -> None:
    envs = prepare({"env_vars": {"MINE": "1"}}, ship_code=False)
    assert envs.of(ROLES[Role.COORDINATOR]) == {}
    assert envs.of(ROLES[Role.SHARD]) == {"env_vars": {KIND: COMPUTING}}
    for role in (Role.WORKER, Role.EVALUATOR):
        assert envs.of(ROLES[role]) == {"env_vars": {"MINE": "1", KIND: COMPUTING}}
    bare = prepare(None, ship_code=False)
    assert bare.of(ROLES[Role.WORKER]) == bare.of(ROLES[Role.SHARD]), "then a process that waits fits both"

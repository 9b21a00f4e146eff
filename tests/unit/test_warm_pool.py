"""Which processes a job takes, and what tells those that compute from the others."""

from __future__ import annotations

from typing import Any

import pytest

from actors.job.packages import prepare
from actors.job.warm_pool import Processes, taken_by
from actors.shell.process import SMALL_ENV
from raysync.address import Role
from raysync.control.roles import ROLES
from raysync.spec import parse_spec


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"scale": {"workers": 2}}, Processes(4, 1)),
        ({"scale": {"workers": 4, "shards": 2}}, Processes(7, 1)),
        ({"scale": {"workers": 4, "shards": 2, "shards_in": "workers"}}, Processes(5, 1)),
        ({"scale": {"workers": 2}, "eval": {"on": "evaluator"}}, Processes(5, 1)),
    ],
)
def test_a_job_takes_a_process_for_every_actor_and_its_controller(fields: dict[str, Any], expected: Processes) -> None:
    assert taken_by(parse_spec({"task": {"kind": "digits"}, **fields})) == expected


@pytest.mark.parametrize("is_warm", [False, True])
def test_processes_that_compute_are_told_from_those_that_talk(is_warm: bool) -> None:
    envs = prepare({"env_vars": {"MINE": "1"}}, ship_code=False, is_warm=is_warm)
    assert envs.of(ROLES[Role.COORDINATOR]) == (SMALL_ENV if is_warm else {})
    assert envs.of(ROLES[Role.SHARD]) == {}
    for role in (Role.WORKER, Role.EVALUATOR):
        assert envs.of(ROLES[role]) == {"env_vars": {"MINE": "1"}}
    bare = prepare(None, ship_code=False, is_warm=is_warm)
    assert bare.of(ROLES[Role.WORKER]) == {}, "a process that waits fits workers and shards"

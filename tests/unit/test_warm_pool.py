"""What tells processes that compute from the others."""

from __future__ import annotations

import pytest

from actors.job.packages import prepare
from actors.shell.process import SMALL_ENV
from raysync.address import Role
from raysync.control.roles import ROLES


@pytest.mark.parametrize("is_warm", [False, True])
def test_processes_that_compute_are_told_from_those_that_talk(is_warm: bool) -> None:
    envs = prepare({"env_vars": {"MINE": "1"}}, ship_code=False, is_warm=is_warm)
    assert envs.of(ROLES[Role.COORDINATOR]) == (SMALL_ENV if is_warm else {})
    assert envs.of(ROLES[Role.SHARD]) == {}
    for role in (Role.WORKER, Role.EVALUATOR):
        assert envs.of(ROLES[role]) == {"env_vars": {"MINE": "1"}}
    bare = prepare(None, ship_code=False, is_warm=is_warm)
    assert bare.of(ROLES[Role.WORKER]) == {}, "a process that waits fits workers and shards"

"""Processes that are killed and frozen on a real Ray: no round is lost or told twice, and the others go on."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from actors import Job, submit
from raysync.events import Event
from raysync.ports import JobStatus
from tests.drowsy import TASK
from tests.engine.test_mesh import LATE, SPARSE, mesh
from tests.runtime.test_equality import simulated
from tests.runtime.test_jobs import digits, end, has_replaced, running, wait_for

ONEBIT = {"push": {"kind": "onebit"}, "pull": {"kind": "onebit"}}
SCALE = {"workers": 3, "shards": 2, "cpus_per_worker": 0.5}
JOBS: dict[str, dict[str, Any]] = {
    "bsp": {"strategy": {"kind": "bsp"}, "scale": SCALE},
    "selsync": {"strategy": {"kind": "selsync"}, "compression": ONEBIT, "scale": SCALE},
    "ssp": {"strategy": {"kind": "ssp", "staleness_bound": 2}, "scale": SCALE},
}


def pids_of(status: JobStatus) -> dict[str, int | None]:
    return {name: found.pid for name, found in status.actors.items()}


def strike(job: Job, name: str, kind: signal.Signals) -> Mapping[str, int | None]:
    """Kill or freeze an actor; return who ran before."""
    before = pids_of(wait_for(job, running))
    os.kill(before[name] or 0, kind)
    return before


def goes_on(job: Job, steps: int = 20) -> JobStatus:
    at = job.status().step
    return wait_for(job, lambda s: s.step > at + steps and s.state == "RUNNING", 90)


def check_told(records: list[Event]) -> None:
    """Every step was decided on once, and every round has a number of its own."""
    decided = [record for record in records if record.kind == "decision"]
    assert [record.step for record in decided] == list(range(len(decided)))
    rounds = [record.data["round"] for record in decided if record.data["sync"]]
    assert rounds == list(range(len(rounds)))


@pytest.mark.timeout(300)
def test_a_job_outlives_its_coordinator_a_shard_and_a_worker_that_freezes_and_wakes(storage: str) -> None:
    job = submit(digits(**JOBS["selsync"]), storage_path=storage)
    assert wait_for(job, running).runs.backups == 1
    first = strike(job, "coordinator", signal.SIGKILL)
    after = wait_for(job, lambda s: has_replaced(s, "coordinator", first) and s.state == "RUNNING")
    assert first.items() - pids_of(after).items() == {("coordinator", first["coordinator"])}, "nobody else restarts"
    goes_on(job)

    before = strike(job, "shard/0", signal.SIGKILL)
    wait_for(job, lambda s: "shard/0" not in s.actors)
    after = goes_on(job)
    assert before.items() - pids_of(after).items() == {("shard/0", before["shard/0"])}
    assert job.status().incarnation == 2, "it did not go back to a checkpoint"

    before = strike(job, "worker/1", signal.SIGSTOP)
    try:
        frozen = wait_for(job, lambda s: s.state == "RECOVERING" and s.actors["worker/1"].life == "frozen")
        assert "has not answered" in frozen.reason
        wait_for(job, lambda s: s.step > frozen.step + 5)
    finally:
        os.kill(before["worker/1"] or 0, signal.SIGCONT)
    after = goes_on(job)
    assert pids_of(after)["worker/1"] == before["worker/1"], "it came back as it was"
    result = end(job)
    assert result.state == "STOPPED", result.reason
    check_told(result.records())
    views = [record.data["members"] for record in result.records() if record.kind == "view"]
    assert views == [[0, 1, 2], [0, 2], [0, 1, 2]]
    assert result.records()[-1].step == len([record for record in result.records() if record.kind == "decision"])


@pytest.mark.matrix
@pytest.mark.timeout(300)
def test_the_deaths_of_servers_change_no_bit(storage: str) -> None:
    spec = digits(**JOBS["bsp"], budget={"steps": 1500})
    job = submit(spec, storage_path=storage)
    strike(job, "shard/1", signal.SIGKILL)
    wait_for(job, lambda s: "shard/1" not in s.actors)
    before = strike(job, "coordinator", signal.SIGKILL)
    wait_for(job, lambda s: has_replaced(s, "coordinator", before))
    job.wait(200)
    result = job.result()
    job.forget()
    assert result.state == "SUCCEEDED", result.reason
    check_told(result.records())
    expected = simulated(spec)
    assert all(torch.equal(value, expected[name]) for name, value in result.model_state().items())


@pytest.mark.matrix
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("role", ["coordinator", "shard/0", "worker/0", "worker/2"])
@pytest.mark.parametrize("name", JOBS)
def test_whoever_dies_or_freezes(name: str, role: str, kind: signal.Signals, storage: str) -> None:
    job = submit(digits(**JOBS[name]), storage_path=storage)
    before = strike(job, role, kind)
    wait_for(job, lambda s: s.state == "RECOVERING" or has_replaced(s, role, before))
    if kind is signal.SIGSTOP and role.startswith("worker"):
        os.kill(before[role] or 0, signal.SIGCONT)
    goes_on(job)
    result = end(job)
    with contextlib.suppress(ProcessLookupError):
        os.kill(before[role] or 0, signal.SIGCONT)
    assert result.state == "STOPPED", result.reason
    check_told(result.records())


@pytest.mark.matrix
@pytest.mark.timeout(300)
@pytest.mark.parametrize("role", ["coordinator", "shard/0", "stage/1/0"])
def test_a_mesh_outlives_any_of_its_processes(role: str, storage: str) -> None:
    scale = {"workers": 2, "stages": 2, "shards": 2, "cpus_per_worker": 0.5}
    job = submit(mesh(2, 2, LATE, SPARSE, budget={"steps": 100_000}, task=TASK, scale=scale), storage_path=storage)
    before = strike(job, role, signal.SIGKILL)
    wait_for(job, lambda s: s.state == "RECOVERING" or has_replaced(s, role, before))
    goes_on(job)
    result = end(job)
    assert result.state == "STOPPED", result.reason

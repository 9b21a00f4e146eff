"""Every role, at every moment of a round and of a checkpoint, killed and frozen: no step is lost, and none told twice.

One job bears many strikes, one after the other, each once all is as it should be. A slice runs always.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from actors import Job, submit
from raysync.spec import JobSpec
from tests.engine.test_mesh import LATE, SPARSE, mesh
from tests.ray_nodes import Nodes
from tests.runtime.test_failover import ONEBIT, check_told
from tests.runtime.test_jobs import LONG, digits, end, wait_for
from tests.runtime.test_nodes import join, nodes  # noqa: F401
from tests.strikes import processes, send, settled
from tests.striking import MOMENTS, arm

ROLES = ("worker", "stage", "shard", "backup", "coordinator", "controller")
_STRUCK_S = 30.0
_NOTICED_S = 1.5
"""So long one is frozen: longer than it takes to notice on one machine."""
SCALE = {"workers": 3, "shards": 2, "cpus_per_worker": 0.5, "block_bytes": 1024}
JOBS: dict[str, dict[str, Any]] = {
    "bsp": {"strategy": {"kind": "bsp"}, "scale": SCALE},
    "selsync": {"strategy": {"kind": "selsync", "delta": 0.05}, "compression": ONEBIT, "scale": SCALE},
    "ssp": {"strategy": {"kind": "ssp", "staleness_bound": 2}, "scale": SCALE},
}


def job_of(name: str, plan: Path) -> JobSpec:
    """Return a job that strikes as a plan says."""
    if name == "mesh":
        task = {"kind": "custom", "entrypoint": "tests.striking:StrikingText", "args": {"plan": str(plan)}}
        scale = {"workers": 2, "stages": 2, "shards": 2, "cpus_per_worker": 0.5}
        return mesh(2, 2, LATE, SPARSE, budget={"steps": LONG}, task=task, scale=scale)
    task = {"kind": "custom", "entrypoint": "tests.striking:Striking", "args": {"plan": str(plan)}}
    return digits(**JOBS[name], task=task, budget={"steps": LONG})


def suffer(job: Job, plan: Path, role: str, moment: str, kind: signal.Signals, node: Nodes | None = None) -> None:
    """Strike a process of a role at a moment, and wait until all is as before."""
    found = processes(job, settled(job), node)
    if role not in found:
        return
    pid = sorted(found[role].items())[-1][1]
    arm(plan, moment, pid, kind, is_group=role == "node")
    if moment == "checkpoint":
        job.checkpoint()
    deadline_s = time.monotonic() + _STRUCK_S
    while plan.exists():
        assert time.monotonic() < deadline_s, f"nobody came to {moment}: {job.status()}"
        time.sleep(0.02)
    time.sleep(_NOTICED_S if role != "node" else 3 * _NOTICED_S)
    if kind is signal.SIGSTOP:
        send(role, pid, signal.SIGCONT)
    at = job.status().step
    wait_for(job, lambda s: s.step > at + 10, 60)


def outlives(
    storage: str,
    tmp_path: Path,
    name: str,
    strikes: Sequence[tuple[str, str, signal.Signals]],
    node: Nodes | None = None,
) -> None:
    """Run a job through strikes; it ends in good order, and every step was decided on once."""
    plan = tmp_path / "plan.json"
    job = submit(job_of(name, plan), storage_path=storage)
    for role, moment, kind in strikes:
        suffer(job, plan, role, moment, kind, node)
    settled(job)
    result = end(job)
    assert result.state == "STOPPED", result.reason
    records = result.records()
    if name != "mesh":
        check_told(records)
    decided = [record.step for record in records if record.kind == "decision"]
    assert len(decided) == len({*decided})
    assert max(record.incarnation for record in records) <= 1 + len(strikes)


@pytest.mark.timeout(240)
def test_a_backup_a_controller_and_a_shard_are_struck_at_the_worst_moments(storage: str, tmp_path: Path) -> None:
    kill, stop = signal.SIGKILL, signal.SIGSTOP
    strikes = [("shard", "closing", kill), ("controller", "pulling", kill), ("shard", "pushing", stop)]
    outlives(storage, tmp_path, "selsync", strikes)


@pytest.mark.matrix
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("name", [*JOBS, "mesh"])
def test_every_role_at_every_moment(name: str, moment: str, kind: signal.Signals, storage: str, tmp_path: Path) -> None:
    outlives(storage, tmp_path, name, [(role, moment, kind) for role in ROLES])


@pytest.mark.matrix
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("name", JOBS)
def test_a_node_at_every_moment(
    name: str,
    moment: str,
    kind: signal.Signals,
    storage: str,
    tmp_path: Path,
    nodes: Nodes,  # noqa: F811
) -> None:
    join(nodes)
    try:
        outlives(storage, tmp_path, name, [("node", moment, kind)], nodes)
    finally:
        if nodes.last is not None:
            send("node", nodes.last, signal.SIGCONT)

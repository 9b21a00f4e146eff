"""Nodes that come and go under a running job: one that is told to go, one that dies with several roles on it, one that
stands still. They are children of the test that join its Ray.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from actors import Job, submit
from raysync.ports import JobStatus
from tests.ray_nodes import Nodes
from tests.runtime.test_failover import JOBS, check_told
from tests.runtime.test_jobs import digits, end, running, wait_for


@pytest.fixture
def nodes(local_ray: None) -> Iterator[Nodes]:
    folder = tempfile.mkdtemp(prefix="rs-")  # what is killed with the last process of a node stays there
    found = Nodes(Path(folder), {**os.environ, "TMPDIR": folder})
    yield found
    found.end()
    shutil.rmtree(folder, ignore_errors=True)


def join(nodes: Nodes) -> str:
    """Start a node that joins the test's Ray; return its id."""
    before = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    nodes.start(f"--address={ray.get_runtime_context().gcs_address}", "--num-cpus=4")
    (new,) = {node["NodeID"] for node in ray.nodes() if node["Alive"]} - before
    return new


def roles_on(status: JobStatus, node: str) -> set[str]:
    return {name for name, found in status.actors.items() if found.node_id == node and found.life != "dead"}


def is_whole_without(status: JobStatus, node: str) -> bool:
    up = [found for found in status.actors.values() if found.life == "alive"]
    return running(status) and not roles_on(status, node) and len(up) == len(status.actors)


def spread_job(storage: str, node: str, name: str = "selsync") -> tuple[Job, set[str]]:
    """Start a job on the first node and another; return it, and what is on the other."""
    job = submit(digits(**JOBS[name]), storage_path=storage)
    status = wait_for(job, lambda s: running(s) and all(found.life == "alive" for found in s.actors.values()))
    return job, roles_on(status, node)


@pytest.mark.matrix
@pytest.mark.timeout(300)
def test_what_is_on_a_node_that_is_told_to_go_leaves_in_good_order(storage: str, nodes: Nodes) -> None:
    node = join(nodes)
    job, there = spread_job(storage, node)
    assert {name.partition("/")[0] for name in there} == {"worker", "shard"}
    nodes.tell_to_go()
    wait_for(job, lambda s: is_whole_without(s, node), 25)
    at = job.status().step
    wait_for(job, lambda s: s.step > at + 20)
    result = end(job)
    assert result.state == "STOPPED", result.reason
    records = result.records()
    check_told(records)
    assert not [record for record in records if record.kind == "death"], "nobody died"
    left = [record.data["left"] for record in records if record.kind == "view" and record.data["left"]]
    assert len(left) == 1


@pytest.mark.matrix
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("name", JOBS)
def test_a_node_is_lost_or_stands_still(name: str, kind: signal.Signals, storage: str, nodes: Nodes) -> None:
    node = join(nodes)
    job, there = spread_job(storage, node, name)
    assert len(there) >= 2, there
    nodes.strike(kind)
    at = job.status().step
    try:
        wait_for(job, lambda s: s.step > at + 50 and s.state != "STARTING", 60)
    finally:
        if kind is signal.SIGSTOP:
            nodes.strike(signal.SIGCONT)
    wait_for(job, lambda s: running(s) and all(found.life == "alive" for found in s.actors.values()), 60)
    result = end(job)
    assert result.state == "STOPPED", result.reason
    assert result.records()[-1].incarnation >= 1
    check_told(result.records()) if name != "ssp" else None

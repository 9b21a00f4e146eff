"""Workers that stand by: one takes the place of a worker that dies or freezes, at once, and another one stands by."""

from __future__ import annotations

import os
import signal
import time

import pytest
import ray

from actors import submit
from actors.job.actor_group import NAMESPACE
from raysync.ports import JobStatus
from tests.runtime.test_jobs import digits, end, running, wait_for, workers_of
from tests.strikes import begins_s

_SOON_S = 3.0
"""A process takes longer than that to start and import, on the machines these tests run on."""


def stands_by(status: JobStatus, name: str) -> bool:
    return running(status) and name in status.actors and status.actors[name].life == "spare"


@pytest.mark.matrix
@pytest.mark.timeout(240)
def test_a_spare_is_called_in_for_a_dead_worker_and_for_a_frozen_one(storage: str) -> None:
    job = submit(digits(scale={"workers": 2, "spares": 1, "cpus_per_worker": 0.5}), storage_path=storage)
    before = workers_of(wait_for(job, lambda s: stands_by(s, "worker/2")))
    os.kill(before["worker/1"], signal.SIGKILL)
    killed_s = time.time()
    after = wait_for(job, lambda s: stands_by(s, "worker/3"))
    assert workers_of(after).items() >= {name: before[name] for name in ("worker/0", "worker/2")}.items()

    os.kill(workers_of(after)["worker/3"], signal.SIGKILL)  # nobody misses it
    wait_for(job, lambda s: stands_by(s, "worker/4"))
    ray.kill(ray.get_actor(f"{job.id}:controller", namespace=NAMESPACE), no_restart=False)
    known = wait_for(job, lambda s: stands_by(s, "worker/4"))
    pid = workers_of(known)["worker/2"]
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_for(job, lambda s: "worker/4" in s.actors and s.actors["worker/4"].life == "alive")
        at = job.status().step
        wait_for(job, lambda s: s.step > at + 20)
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_for(job, lambda s: running(s) and "stands by" in s.reason and s.actors["worker/2"].life == "alive")
    result = end(job)
    assert result.state == "STOPPED", result.reason
    records = result.records()
    views = [record for record in records if record.kind == "view"]
    told = [view.data["members"] for view in views]
    assert told[:3] == [[0, 1], [0], [0, 2]], told
    assert told[3:5] == [[0], [0, 4]], told
    assert told[-1] == [0, 2], "whoever is one too many leaves in good order"
    assert [record.data["worker"] for record in records if record.kind == "death"] == [1]
    print(f"without it after {begins_s(records) + views[1].time_s - killed_s:.2f} s")
    print(f"with the spare after {begins_s(records) + views[2].time_s - killed_s:.2f} s")
    assert views[2].time_s - views[1].time_s < _SOON_S
    decided = [record.step for record in records if record.kind == "decision"]
    assert decided == list(range(len(decided)))

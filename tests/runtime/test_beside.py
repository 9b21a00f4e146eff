"""What goes on beside the training, on a real Ray: an evaluator, a limited line, codecs made ready, warm processes."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest
import ray

from actors import submit
from actors.job.warm_pool import Processes, WarmPool
from actors.shell.process import SMALL_ENV
from raysync.events import Decision, Metrics
from tests.runtime.test_jobs import digits, end, has_replaced, running, wait_for
from tests.serving import until


def test_an_evaluator_judges_beside_the_training_and_is_started_again_when_it_dies(storage: str) -> None:
    job = submit(digits(eval={"every": 20, "on": "evaluator"}), storage_path=storage)
    status = wait_for(job, lambda s: running(s) and "eval/accuracy" in s.metrics)
    before = {name: found.pid for name, found in status.actors.items()}
    assert "evaluator" in before
    os.kill(before["evaluator"] or 0, signal.SIGKILL)
    again = wait_for(job, lambda s: has_replaced(s, "evaluator", before))
    step, reported = again.step, again.metrics["eval/round"]
    after = wait_for(job, lambda s: s.step > step and s.metrics["eval/round"] > reported)
    assert {name: found.pid for name, found in after.actors.items() if name != "evaluator"} == {
        name: pid for name, pid in before.items() if name != "evaluator"
    }, "the others go on"
    result = end(job)
    assert result.state == "STOPPED"
    told = [event for event in result.records() if isinstance(event.body, Metrics) and "eval/loss" in event.body.values]
    assert all(event.step % 20 == 0 for event in told[:-1]), "of the model of the step it names"


@pytest.mark.matrix
def test_a_limit_holds_what_actors_send_and_a_knob_lifts_it(storage: str) -> None:
    """A dense round carries 4.8 kB up and down for each of two workers: at 0.2 Mbit/s some 0.4 s, else next to nothing."""
    spec = digits(strategy={"kind": "bsp"}, transport={"limit_mbit": 0.2})
    job = submit(spec, storage_path=storage)
    slow = wait_for(job, running)
    assert slow.knobs.values["limit_mbit"] == 0.2
    job.turn(limit_mbit=None)
    lifted = wait_for(job, lambda s: s.knobs.values["limit_mbit"] is None)
    wait_for(job, lambda s: s.step > lifted.step + 40)
    records = end(job).records()
    turned = next(event.step for event in records if event.kind == "knobs")
    times = {event.step: event.time_s for event in records if isinstance(event.body, Decision)}
    held_s = (times[turned - 1] - times[1]) / (turned - 2)
    free_s = (times[turned + 30] - times[turned + 3]) / 27
    assert held_s > 0.2, "no faster than the line"
    assert free_s < held_s / 3


def test_processes_wait_for_the_next_job_and_are_used_by_it(local_ray: None, tmp_path: Path) -> None:
    pool = WarmPool(Processes(0, 1), tmp_path / "warming")
    until(lambda: pool.is_full, 60)
    assert not (tmp_path / "warming").exists(), "processes that start now are wanted at once"
    waiting = idle()

    @ray.remote(num_cpus=0, runtime_env=SMALL_ENV)
    class Probe:
        def pid(self) -> int:
            return os.getpid()

    probe = Probe.remote()
    assert ray.get(probe.pid.remote(), timeout=30) in waiting
    pool.took()
    until(lambda: pool.is_full, 60)
    assert idle() - waiting, "another has taken its place"
    pool.close()
    ray.kill(probe)


def idle() -> set[int]:
    """Return the processes of Ray that wait for work."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (folder / "cmdline").read_bytes().startswith(b"ray::IDLE"):
                found.add(int(folder.name))
    return found

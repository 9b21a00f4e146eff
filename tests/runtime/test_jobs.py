"""Jobs that are steered, broken, resumed and run side by side, on a real Ray."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import ray
import torch

from actors import Job, fit, submit
from actors.job.actor_group import NAMESPACE
from actors.storage.folder import Folder, completed, read_manifest
from raysync.errors import CheckpointError, KnobConflict, KnobError, SpecError
from raysync.ports import JobStatus
from raysync.spec import JobSpec, parse_spec
from tests.drowsy import TASK
from tests.jobs import job
from tests.runtime.test_equality import simulated

LONG = 100_000
"""More steps than a test waits for."""
FEW: dict[str, Any] = {"shards_in": "workers"}
"""One process fewer, where a test is not about shards: starting processes is most of what these tests cost."""


def digits(**changes: Any) -> JobSpec:
    """A small job; without a budget, one that goes on until it is ended, and leaves the cores to others."""
    scale = {"workers": 2, "cpus_per_worker": 1, **changes.pop("scale", {})}
    task = {"kind": "digits", "hidden": [16]} if "budget" in changes else TASK
    defaults: dict[str, Any] = {"task": task, "budget": {"steps": LONG}, "eval": {"every": 50}}
    return job(changes.pop("strategy", {"kind": "selsync", "delta": 0.3}), scale=scale, **{**defaults, **changes})


def wait_for(job: Job, condition: Callable[[JobStatus], bool], timeout_s: float = 60.0) -> JobStatus:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        status = job.status()
        if condition(status):
            return status
        assert status.state not in ("FAILED", "SUCCEEDED"), status.reason
        time.sleep(0.1)
    raise AssertionError(f"not within {timeout_s:.0f} s: {job.status()}")


def end(job: Job, checkpoint: bool = False) -> Any:
    job.stop("the test is over", checkpoint=checkpoint)
    assert job.wait(60)
    result = job.result()
    job.forget()
    return result


def running(status: JobStatus) -> bool:
    return status.state == "RUNNING" and status.step > 5


def has_replaced(status: JobStatus, name: str, before: Mapping[str, int | None]) -> bool:
    """Return whether an actor runs in another process than before; while it is started again there is none."""
    return name in status.actors and status.actors[name].pid not in (None, before[name])


def workers_of(status: JobStatus) -> dict[str, int]:
    return {name: found.pid for name, found in status.actors.items() if name.startswith("worker/")}


def test_steering_resizing_pausing_and_stopping(storage: str) -> None:
    job = submit(digits(scale={"min_workers": 1, "max_workers": 3, **FEW}), storage_path=storage)
    before = workers_of(wait_for(job, running))
    assert job.status().runs.link == "direct"
    assert {"device": "cpu", "torch_threads": 1}.items() <= wait_for(
        job, lambda s: "device" in s.actors["worker/0"].facts
    ).actors["worker/0"].facts.items()

    with pytest.raises(KnobError, match="dleta"):
        job.turn(dleta=0.1)
    version = job.turn(delta=0.9).version
    with pytest.raises(KnobConflict):
        job.turn(expected_version=version - 1, delta=0.1)
    wait_for(job, lambda s: s.knobs.version == version)

    job.resize(3)
    grown = workers_of(wait_for(job, lambda s: running(s) and len(workers_of(s)) == 3 and all(workers_of(s).values())))
    assert before.items() <= grown.items(), "nobody was restarted"
    job.resize(1)
    shrunk = workers_of(wait_for(job, lambda s: running(s) and len(workers_of(s)) == 1))
    assert shrunk.items() <= before.items()
    with pytest.raises(KnobError, match="max_workers=3"):
        job.resize(4)

    job.pause()
    at = wait_for(job, lambda s: s.state == "PAUSED").step
    time.sleep(1.0)
    assert job.status().step <= at + 1
    job.resume()
    wait_for(job, lambda s: running(s) and s.step > at + 5)

    result = end(job, checkpoint=True)
    assert (result.state, result.reason) == ("STOPPED", "the test is over")
    assert read_manifest(Folder(result.checkpoint_path))["workers"] == [0]
    records = result.records()
    assert [record.sequence for record in records] == list(range(len(records)))
    views = [record.data["members"] for record in records if record.kind == "view"]
    assert (views[:2], views[-1]) == ([[0, 1], [0, 1, 2]], [0])


def test_a_dead_worker_is_replaced_and_the_others_go_on(storage: str) -> None:
    job = submit(digits(scale={"workers": 3}), storage_path=storage)
    before = workers_of(wait_for(job, running))
    os.kill(before["worker/1"], signal.SIGKILL)
    after = wait_for(job, lambda s: running(s) and "worker/3" in s.actors)
    assert {name: workers_of(after)[name] for name in ("worker/0", "worker/2")} == {
        name: before[name] for name in ("worker/0", "worker/2")
    }
    step = after.step
    wait_for(job, lambda s: s.step > step + 20)
    result = end(job)
    assert "feedback/lost_norm" in result.metrics
    assert any(record.kind == "death" and record.data["worker"] == 1 for record in result.records())


def test_the_controller_is_killed_and_the_job_goes_on(storage: str) -> None:
    job = submit(digits(scale={"max_workers": 3}), storage_path=storage)
    wait_for(job, running)
    job.resize(3)
    before = wait_for(job, lambda s: running(s) and len(workers_of(s)) == 3 and all(workers_of(s).values()))
    controller = ray.get_actor(f"{job.id}:controller", namespace=NAMESPACE)
    ray.kill(controller, no_restart=False)
    after = wait_for(job, lambda s: running(s) and s.step > before.step + 20)
    assert workers_of(after) == workers_of(before)
    records = end(job).records()
    assert [record.sequence for record in records] == list(range(len(records)))
    times = [record.time_s for record in records]
    assert times == sorted(times), "one clock, whichever controller wrote"


def test_a_dead_shard_sends_the_job_back_to_its_checkpoint(storage: str) -> None:
    job = submit(digits(strategy={"kind": "bsp"}, checkpoint={"every_rounds": 20, "keep": 2}), storage_path=storage)
    status = wait_for(job, lambda s: s.checkpoint is not None)
    os.kill(status.actors["shard/0"].pid, signal.SIGKILL)
    wait_for(job, lambda s: s.state == "RECOVERING")
    wait_for(job, running)
    assert len(completed(Folder(job.path))) <= 2
    result = end(job)
    assert result.state == "STOPPED"
    times = [record.time_s for record in result.records()]
    assert times == sorted(times), "one clock, though the coordinator went back"


@pytest.mark.matrix
def test_a_dead_shard_without_checkpoint_fails_the_job_and_says_so(storage: str) -> None:
    job = submit(digits(), storage_path=storage)
    status = wait_for(job, running)
    os.kill(status.actors["shard/0"].pid, signal.SIGKILL)
    assert job.wait(30)
    result = job.result()
    job.forget()
    assert result.state == "FAILED"
    assert "shard/0 died" in result.reason
    assert "checkpoint.every_rounds" in result.reason


@pytest.mark.parametrize(
    "strategy",
    [
        {"kind": "selsync", "delta": 0.03, "warmup_steps": 2},
        pytest.param({"kind": "bsp"}, marks=pytest.mark.matrix),
    ],
)
def test_resume_ends_in_the_bits_of_a_run_without_a_break(strategy: dict[str, Any], storage: str) -> None:
    changes = {
        "task": {"kind": "digits", "hidden": [16]},
        "eval": {"every": 10},
        "compression": {"push": {"kind": "fp16"}},
    }
    spec = job(strategy, scale={"workers": 2}, checkpoint={"every_rounds": 4}, budget={"steps": 40}, **changes)
    whole = fit(spec, storage_path=storage)
    assert whole.error is None, whole.error
    folder = Folder(whole.path)
    first = completed(folder)[0]
    step = read_manifest(folder.at(first))["step"]
    assert 0 < step < 40
    rest = fit(spec, storage_path=storage, resume_from=f"{whole.path}/{first}")
    assert rest.error is None, rest.error
    assert min(record.step for record in rest.records() if record.kind == "metrics") >= step - 1
    expected = whole.model_state()
    assert all(torch.equal(rest.model_state()[name], expected[name]) for name in expected)

    other = spec.model_copy(update={"seed": 4})
    with pytest.raises(CheckpointError, match="another seed"):
        fit(other, storage_path=storage, resume_from=f"{whole.path}/{first}")
    with pytest.raises(CheckpointError, match="did you mean"):
        fit(spec, storage_path=storage, resume_from=whole.path)


def test_two_jobs_at_once_do_not_disturb_each_other(storage: str) -> None:
    specs = [digits(budget={"steps": 60}, name=name, seed=seed, scale=FEW) for name, seed in (("one", 1), ("two", 2))]
    alone = [simulated(spec) for spec in specs]
    jobs = [submit(spec, storage_path=storage) for spec in specs]
    for side_by_side, expected in zip(jobs, alone, strict=True):
        assert side_by_side.wait(90)
        found = side_by_side.result().model_state()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        side_by_side.forget()


def test_a_job_that_does_not_fit_waits_and_starts_when_it_does(storage: str) -> None:
    big = submit(digits(scale={"workers": 2, "cpus_per_worker": 5, **FEW}), storage_path=storage)
    wait_for(big, running)
    small = submit(
        digits(budget={"steps": 20}, scale={"workers": 2, "cpus_per_worker": 2, **FEW}), storage_path=storage
    )
    status = wait_for(small, lambda s: "fit" in s.reason)
    assert status.state == "PENDING"
    assert status.reason == "2 workers need 2 CPU each; 1 fits now (2 CPU free on 1 node)"
    end(big)
    assert small.wait(60)
    assert small.result().state == "SUCCEEDED"
    small.forget()

    never = submit(digits(scale={"cpus_per_worker": 50}), storage_path=storage)
    wait_for(never, lambda s: s.state == "PENDING" and "0 fit now, and 2 never will" in s.reason)
    assert end(never).state == "STOPPED"


TASKS = """
import torch
from torch.utils.data import TensorDataset

class Good:
    def __init__(self, broken=""):
        self.broken = broken
    def model(self):
        if self.broken == "model":
            return "not a module"
        return torch.nn.Linear(4, 2)
    def train_data(self):
        g = torch.Generator().manual_seed(0)
        x = torch.randn(64, 4, generator=g)
        return TensorDataset(x, (x.sum(1) > 0).long())
    eval_data = train_data
    def loss(self, model, batch):
        if self.broken == "loss":
            raise RuntimeError("the user's own mistake")
        x, y = batch
        print("hello from the task")
        return torch.nn.functional.cross_entropy(model(x), y)

def number():
    return 42
"""


def custom(entrypoint: str, **args: Any) -> JobSpec:
    task = {"kind": "custom", "entrypoint": entrypoint, "args": args}
    return parse_spec({"task": task, "scale": {"workers": 2, **FEW}, "budget": {"steps": 20}, "eval": {"every": 10}})


@pytest.fixture
def working_dir(tmp_path: Path) -> str:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "my_tasks.py").write_text(TASKS)
    return str(tmp_path / "code")


def test_a_custom_task_comes_with_the_working_dir(working_dir: str, storage: str) -> None:
    result = fit(custom("my_tasks:Good"), storage_path=storage, runtime_env={"working_dir": working_dir})
    assert result.error is None, result.error
    assert result.model_state().keys() == {"weight", "bias"}
    lines = Folder(result.path).read("logs.txt").decode().splitlines()
    assert any("worker/0 | hello from the task" in line for line in lines)
    assert any("worker/1 | hello from the task" in line for line in lines)


def matrix(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.matrix)


@pytest.mark.parametrize(
    ("entrypoint", "args", "words"),
    [
        ("my_tasks:Good", {"broken": "loss"}, ["RuntimeError: the user's own mistake", "my_tasks.py", "in loss"]),
        matrix("my_tasks:Good", {"broken": "model"}, ["TaskError", "model() returned a str"]),
        matrix("my_tasks:number", {}, ["TaskError", "returned a int without model"]),
        matrix("my_tasks:absent", {}, ["no callable 'absent'"]),
        ("nowhere:Task", {}, ["cannot be imported", "working_dir"]),
    ],
)
def test_broken_user_code_fails_the_job_with_its_traceback(
    entrypoint: str, args: dict[str, Any], words: list[str], working_dir: str, storage: str
) -> None:
    started_s = time.monotonic()
    result = fit(custom(entrypoint, **args), storage_path=storage, runtime_env={"working_dir": working_dir})
    assert result.state == "FAILED"
    assert all(word in str(result.error) for word in words), result.error
    assert time.monotonic() - started_s < 60


def test_a_working_dir_that_hides_raysync_is_refused(tmp_path: Path, storage: str) -> None:
    (tmp_path / "actors").mkdir()
    with pytest.raises(SpecError, match="would hide raysync's own package"):
        fit(custom("a:b"), storage_path=storage, runtime_env={"working_dir": str(tmp_path)})


def test_code_shipped_from_the_driver_is_what_runs(storage: str) -> None:
    result = fit(digits(budget={"steps": 10}, scale=FEW), storage_path=storage, ship_code=True)
    assert result.error is None, result.error

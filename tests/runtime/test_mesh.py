"""Pipelines and meshes on a real Ray."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import torch

from actors import fit, submit
from actors.storage.folder import Folder, read_model
from raysync.spec import JobSpec
from tests.drowsy import TASK
from tests.engine.test_mesh import BSP, LATE, LOCAL, SPARSE, distance, mesh, run
from tests.runtime.test_jobs import end, has_replaced, running, wait_for

matrix = pytest.mark.matrix


@pytest.mark.parametrize(
    ("stages", "pipelines", "schedule", "strategy", "link"),
    [
        pytest.param(2, 1, "gpipe", BSP, "auto", marks=matrix),
        pytest.param(4, 1, "one_f_one_b", BSP, "auto", marks=matrix),
        pytest.param(3, 1, "gpipe", LOCAL, "ray", marks=matrix),
        (3, 2, "one_f_one_b", BSP, "auto"),
        pytest.param(2, 2, LATE, LOCAL, "auto", marks=matrix),
    ],
)
def test_bits_are_the_simulators_and_the_unsplit_models(
    stages: int, pipelines: int, schedule: Any, strategy: dict[str, Any], link: str, storage: str
) -> None:
    spec = mesh(stages, pipelines, schedule, strategy, transport=link, checkpoint={"every_rounds": 2})
    result = fit(spec, storage_path=storage)
    assert result.error is None, result.error
    expected, _ = run(spec)
    found = result.model_state()
    assert distance(expected, found) == 0.0
    if schedule is not LATE:
        whole, _ = run(mesh(1, pipelines, strategy=strategy))
        assert distance(whole, found) < 1e-6
    assert result.checkpoint_path is not None
    parts = read_model(Folder(result.checkpoint_path))
    assert {name: value.shape for name, value in parts.items()} == {name: value.shape for name, value in found.items()}


@matrix
@pytest.mark.timeout(300)
def test_a_mesh_in_trouble_ends_with_the_loss_of_a_calm_one(storage: str) -> None:
    scale = {"workers": 2, "stages": 2, "max_workers": 3}
    optimizer = {"kind": "lookahead", "lr": 0.003, "beta1": 0.9}
    task = {"kind": "custom", "entrypoint": "tests.drowsy:DrowsyText"}
    changes = {"scale": scale, "optimizer": optimizer, "budget": {"steps": 500}, "eval": {"every": 500}, "task": task}
    spec = mesh(2, 2, LATE, {**SPARSE, "sparse_fraction": 0.1}, **changes)
    calm = fit(spec, storage_path=storage)
    assert calm.state == "SUCCEEDED"

    job = submit(spec, storage_path=storage)
    pids = {name: found.pid for name, found in wait_for(job, running).actors.items()}
    wait_for(job, lambda s: s.step > 50)
    os.kill(pids["stage/1/1"], signal.SIGKILL)
    wait_for(job, lambda s: has_replaced(s, "stage/1/1", pids) and running(s))
    job.resize(3)
    wait_for(job, lambda s: running(s) and sum(name.startswith("stage/") for name in s.actors) == 6)
    job.resize(2)
    job.wait(200)
    result = job.result()
    job.forget()
    assert result.state == "SUCCEEDED", result.error
    views = [record.data["members"] for record in result.records() if record.kind == "view"]
    assert [0] in views
    assert [0, 1, 2] in views
    assert views[-1] == [0, 1]
    assert result.metrics["eval/loss"] == pytest.approx(calm.metrics["eval/loss"], rel=0.03)
    assert result.metrics["pipeline/dropped"] > 0, "microbatches in flight were counted"


@pytest.mark.timeout(240)
def test_an_asynchronous_mesh_loses_a_stage_grows_and_shrinks(storage: str) -> None:
    spec: JobSpec = mesh(2, 2, LATE, SPARSE, budget={"steps": 100_000}, eval={"every": 50}, task=TASK)
    job = submit(spec, storage_path=storage)
    status = wait_for(job, running)
    pids = {name: found.pid for name, found in status.actors.items()}
    assert {name for name in pids if name.startswith("stage/")} == {f"stage/{s}/{d}" for s in (0, 1) for d in (0, 1)}
    assert wait_for(job, lambda s: "pipeline/delay" in s.metrics).metrics["pipeline/delay"] == 1

    version = job.turn(lr=0.01, staleness_bound=8).version
    wait_for(job, lambda s: s.knobs.version == version)
    os.kill(pids["stage/1/1"], signal.SIGKILL)
    at = job.status().step
    after = wait_for(job, lambda s: has_replaced(s, "stage/1/1", pids) and running(s))
    kept = {name: pid for name, pid in pids.items() if name != "stage/1/1"}
    assert kept.items() <= {name: found.pid for name, found in after.actors.items()}.items(), "no survivor restarts"
    wait_for(job, lambda s: s.step > at + 20 and s.state == "RUNNING")

    job.resize(3)
    grown = wait_for(job, lambda s: s.state == "RUNNING" and sum(name.startswith("stage/") for name in s.actors) == 6)
    assert kept.items() <= {name: found.pid for name, found in grown.actors.items()}.items()
    job.resize(2)
    wait_for(job, lambda s: s.state == "RUNNING" and sum(name.startswith("stage/") for name in s.actors) == 4)
    result = end(job, checkpoint=True)
    assert result.state == "STOPPED"
    views = [record.data["members"] for record in result.records() if record.kind == "view"]
    assert [0] in views, "the broken pipeline was out for a while"
    assert views[-1] == [0, 1]
    state = result.model_state()
    assert all(torch.isfinite(value).all() for value in state.values())

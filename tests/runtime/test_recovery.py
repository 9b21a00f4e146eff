"""Jobs that lose things on a real Ray and keep what they had: knobs, checkpoints, the final model."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import ray

from actors import submit
from actors.job.actor_group import NAMESPACE
from actors.storage.folder import Folder, completed, read_manifest
from tests.jobs import job
from tests.runtime.test_jobs import digits, end, running, wait_for


@pytest.mark.matrix
@pytest.mark.timeout(240)
def test_turned_early_through_storage_away_and_a_controller_killed_in_a_recovery(storage: str) -> None:
    job = submit(digits(strategy={"kind": "bsp"}, scale={"max_workers": 3}), storage_path=storage)
    assert job.turn(expected_version=0, lr=0.01).version == 1, "before it runs"
    assert job.resize(3).version == 2
    wait_for(job, running)

    job.checkpoint()
    at = wait_for(job, lambda s: s.checkpoint is not None).step
    folder, away = Path(job.path), Path(f"{job.path}-away")
    folder.rename(away)
    folder.write_text("no folder")  # every write fails
    job.checkpoint()
    time.sleep(6)
    folder.unlink()
    away.rename(folder)
    wait_for(job, lambda s: s.step > at + 20)
    assert job.turn(lr=0.005).version == 3, "after the checkpoint"
    status = wait_for(job, lambda s: s.knobs.version == 3)

    os.kill(status.actors["shard/0"].pid, signal.SIGKILL)
    wait_for(job, lambda s: s.incarnation == 2 and s.state == "STARTING")
    assert job.turn(expected_version=3, lr=0.004).version == 4, "while nobody can be asked"
    ray.kill(ray.get_actor(f"{job.id}:controller", namespace=NAMESPACE), no_restart=False)
    status = wait_for(job, lambda s: running(s) and s.knobs.version == 4)
    assert (status.knobs.values["lr"], status.asked.version) == (0.004, 4)
    wait_for(job, lambda s: s.step > status.step + 10)
    (name,) = completed(Folder(job.path))
    step = read_manifest(Folder(job.path).at(name))["step"]
    result = end(job)
    records = result.records()
    assert [record.sequence for record in records] == list(range(len(records))), "no number twice, none left out"
    first = next(record for record in records if record.kind == "knobs")
    assert (first.step, first.knob_version, first.data["after"]) == (0, 2, {"lr": 0.01, "workers": 3})
    assert next(record.data["members"] for record in records if record.kind == "view") == [0, 1, 2]
    decision = next(record for record in records if record.kind == "decision")
    assert (decision.step, decision.knob_version) == (0, 2), "in force from the first step on"
    failed = [record.data for record in records if record.kind == "checkpoint_failed"]
    assert len(failed) == 1, "one checkpoint could not be written, and nothing else happened"
    again = [record for record in records if record.incarnation > 1 and record.kind in ("metrics", "decision")]
    assert min(record.step for record in again) >= step - 1 > 0, "from the checkpoint on, not from the first step"
    handed = [record for record in records if record.incarnation > 1 and record.kind == "knobs"]
    assert [(record.knob_version, record.data["after"]) for record in handed] == [(4, {"lr": 0.004})]
    assert "after the checkpoint" in handed[0].data["why"]


def test_when_the_leader_dies_while_it_saves_the_model_is_still_there(storage: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    task = {"kind": "custom", "entrypoint": "tests.sluggish:Sluggish", "args": {"mark": str(mark)}}
    spec = job({"kind": "bsp"}, task=task, scale={"workers": 2}, budget={"steps": 10})
    handle = submit(spec, storage_path=storage)
    deadline_s = time.monotonic() + 60
    while not mark.exists() or not mark.read_text():
        assert time.monotonic() < deadline_s, handle.status()
        time.sleep(0.1)
    time.sleep(1.0)  # whoever would go without the model has gone
    os.kill(int(mark.read_text().split()[0]), signal.SIGKILL)
    assert handle.wait(90)
    result = handle.result()
    handle.forget()
    assert (result.state, result.error) == ("SUCCEEDED", None), result.reason
    assert result.model_state()
    assert len({*mark.read_text().split()}) == 2, "another has saved it"
    assert "eval/loss" in [record for record in result.records() if record.kind == "metrics"][-1].data

"""Checkpoints on a real Ray: gone on from with other numbers, with less room, though damaged, and half written."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import ray
import torch

from actors import Job, fit, submit
from actors.storage.folder import Folder, checkpoint_name, completed, read_manifest
from actors.storage.saved import newest_sound
from raysync.spec import JobSpec
from tests.jobs import job
from tests.runtime.conftest import NUM_CPUS
from tests.runtime.test_jobs import digits, end, running, wait_for


def spec_of(workers: int = 3, **scale: Any) -> JobSpec:
    return job(
        {"kind": "selsync", "delta": 0.03, "warmup_steps": 2},
        task={"kind": "digits", "hidden": [16]},
        scale={"workers": workers, "shards_in": "workers", "block_bytes": 1024, **scale},
        compression={"push": {"kind": "onebit"}},
        checkpoint={"every_rounds": 4, "keep": 100},
        budget={"steps": 40},
    )


def notices(records: Any) -> str:
    return "; ".join(record.data["text"] for record in records if record.kind == "notice")


def test_a_job_goes_on_with_other_numbers_of_shards_and_workers(storage: str) -> None:
    """In the bits of a run without a break where only blocks have moved; conserving what is defined where workers go."""
    whole = fit(spec_of(shards=2), storage_path=storage)
    assert whole.error is None, whole.error
    folder = Folder(whole.path)
    first = completed(folder)[0]
    assert read_manifest(folder.at(first))["round"] == 0, "as soon as the first round has closed"
    assert read_manifest(folder.at(first))["checksums"].keys() == read_manifest(folder.at(first))["files"].keys()
    resume = f"{whole.path}/{completed(folder)[-1]}"

    moved = fit(spec_of(shards=3), storage_path=storage, resume_from=f"{whole.path}/{first}")
    assert moved.error is None, moved.error
    expected = whole.model_state()
    assert all(torch.equal(moved.model_state()[name], expected[name]) for name in expected)

    fewer = fit(spec_of(2, max_workers=2, shards=1), storage_path=storage, resume_from=resume)
    assert fewer.error is None, fewer.error
    records = fewer.records()
    assert "goes on with 2 of the 3 workers of its checkpoint" in notices(records)
    assert [record.data["died"] for record in records if record.kind == "view" and record.data["died"]] == [[2]]
    lost = [record.data["feedback/lost_norm"] for record in records if "feedback/lost_norm" in record.data]
    assert lost[-1] > 0


@pytest.mark.matrix
@pytest.mark.parametrize("name", ["worker-1.pt", "shard-0.pt", "coordinator.msgpack"])
def test_a_damaged_checkpoint_is_refused_with_the_name_of_the_file(name: str, storage: str) -> None:
    whole = fit(spec_of(2), storage_path=storage)
    folder = Folder(whole.path).at(completed(Folder(whole.path))[-1])
    data = bytearray(folder.read(name))
    data[len(data) // 2] ^= 1
    folder.write(name, bytes(data))
    result = fit(spec_of(2), storage_path=storage, resume_from=folder.uri)
    assert result.state == "FAILED"
    assert f"{name} is damaged: its checksum is not the manifest's" in str(result.error)


@pytest.mark.matrix
def test_a_recovery_passes_over_a_damaged_checkpoint(storage: str) -> None:
    handle = submit(
        digits(strategy={"kind": "bsp"}, checkpoint={"every_rounds": 10}, scale={"replicas": 0}), storage_path=storage
    )
    wait_for(handle, lambda s: len(s.checkpoints) >= 2)
    handle.turn(pause=True)
    status = wait_for(handle, lambda s: s.state == "PAUSED")
    time.sleep(1.0)  # what is being written
    folder = Folder(handle.path)
    *_, older, newest = completed(folder)
    data = bytearray(folder.at(newest).read("worker-0.pt"))
    data[len(data) // 2] ^= 1
    folder.at(newest).write("worker-0.pt", bytes(data))
    assert newest_sound(folder)[0] == older
    step = read_manifest(folder.at(older))["step"]
    os.kill(status.actors["shard/0"].pid, signal.SIGKILL)
    wait_for(handle, lambda s: s.incarnation == 2 and s.state == "PAUSED")
    handle.turn(pause=False)
    wait_for(handle, lambda s: running(s) and s.step > step + 5)
    records = end(handle).records()
    assert f"{newest} is passed over, an older one is gone on from: worker-0.pt damaged" in notices(records)
    again = [record.step for record in records if record.incarnation > 1 and record.kind == "decision"]
    assert again[0] == step


@pytest.mark.matrix
@pytest.mark.timeout(180)
def test_a_recovery_goes_on_with_as_many_workers_as_there_is_room_for(storage: str) -> None:
    each = NUM_CPUS // 3
    handle = submit(
        digits(
            strategy={"kind": "bsp"},
            checkpoint={"every_rounds": 10},
            scale={"workers": 3, "min_workers": 2, "replicas": 0, "cpus_per_worker": each},
        ),
        storage_path=storage,
    )
    status = wait_for(handle, lambda s: running(s) and bool(s.checkpoints))

    @ray.remote(num_cpus=1)
    class Other:
        def ready(self) -> bool:
            return True

    other = Other.options(num_cpus=each).remote()  # waits for room, and takes it first
    os.kill(status.actors["shard/0"].pid, signal.SIGKILL)
    status = wait_for(handle, lambda s: s.incarnation >= 2 and s.step > 0 and "2 of 3 workers" in s.reason)
    assert status.state == "RESIZING"
    assert {name for name in status.actors if name.startswith("worker")} == {"worker/0", "worker/1"}
    ray.kill(other)
    status = wait_for(handle, lambda s: running(s) and "worker/3" in s.actors)
    records = end(handle).records()
    assert "goes on with 2 of the 3 workers of its checkpoint" in notices(records)


@pytest.mark.matrix
@pytest.mark.parametrize("role", ["worker", "shard", "coordinator"])
def test_whoever_is_killed_while_a_checkpoint_is_written_costs_that_one_only(role: str, storage: str) -> None:
    task = {"kind": "digits", "hidden": [1500, 1500]}
    handle = submit(
        job(
            {"kind": "bsp"},
            task=task,
            scale={"workers": 2, "shards": 2, "replicas": 1, "block_bytes": 2**20},
            checkpoint={"every_rounds": 10},
            budget={"steps": 100_000},
        ),
        storage_path=storage,
    )
    status = wait_for(handle, lambda s: running(s) and bool(s.checkpoints))
    known = completed(Folder(handle.path))[-1]
    pid = status.actors["coordinator" if role == "coordinator" else f"{role}/1"].pid
    name = _being_written(handle, known)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_for(handle, lambda s: any(found > name for found in s.checkpoints), 90)
    sound, wrong = newest_sound(Folder(handle.path))
    records = end(handle).records()
    assert sound is not None
    assert not wrong
    rounds = [record.data["round"] for record in records if record.kind == "decision" and record.data["sync"]]
    assert rounds == sorted({*rounds}), "no round was lost or made twice"


def _being_written(handle: Job, known: str) -> str:
    """Return the name of a checkpoint after `known` that has files and no manifest."""
    number, deadline_s = int(known.removeprefix("checkpoint_")), time.monotonic() + 60
    while time.monotonic() < deadline_s:
        for later in range(number + 1, number + 50):
            place = Path(handle.path) / checkpoint_name(later)
            if place.is_dir() and any(place.iterdir()) and not (place / "manifest.json").exists():
                return place.name
        time.sleep(0.002)
    raise AssertionError("no checkpoint was being written")

"""Jobs looked after: launched once, followed, found again, ended with a reason whatever goes away."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from raysync.control.adopt import GRACE_S
from service.app import create_app
from service.processes import born, is_dead, own_id
from service.store import Store
from service.wiring import assemble
from tests.service.conftest import World, settings_for, tokens_for, until
from tests.service.still_runtime import StillRuntime


@contextlib.contextmanager
def serving(folder: Path, runtime: StillRuntime, **settings: int) -> Iterator[World]:
    """Run a service over the books in a folder."""
    chosen = settings_for(folder, **settings)
    store = Store(chosen.database_url)
    store.database.migrate()
    parts = assemble(chosen, store, runtime)
    with TestClient(create_app(parts)) as http:
        yield World(http, parts, runtime, tokens_for(store))
    store.close()


@pytest.mark.parametrize("state", ["PENDING", "STARTING", "RUNNING", "PAUSED", "RESIZING", "RECOVERING", "STOPPING"])
@pytest.mark.parametrize("meanwhile", ["goes on", "finishes", "finishes and is cleared away"])
def test_a_service_that_comes_back_finds_every_job(state: str, meanwhile: str, tmp_path: Path) -> None:
    runtime = StillRuntime()
    with serving(tmp_path, runtime) as world:
        id = world.submit()
        until(lambda: id in runtime.alive)
        runtime.enter(id, state)
        until(lambda: world.job(id)["state"] == state)
        if state == "STOPPING":
            world.call("POST", f"/api/v1/jobs/{id}/stop", json={"reason": "enough"})
    runtime.tell(id, "metrics", {"train/loss": 0.1}, step=50)
    if meanwhile != "goes on":
        runtime.enter(id, "SUCCEEDED")
    if meanwhile == "finishes and is cleared away":
        runtime.alive.clear()
    with serving(tmp_path, runtime) as world:
        until(lambda: world.job(id)["step"] == 50)
        expected = state if meanwhile == "goes on" else "SUCCEEDED"
        until(lambda: world.job(id)["state"] == expected)
        events = world.call("GET", f"/api/v1/jobs/{id}/events").json()["items"]
        assert [event["sequence"] for event in events] == list(range(len(runtime.folders[id].records)))
        if state == "STOPPING" and meanwhile == "goes on":
            assert runtime.alive[id].stopped == ("enough", 60.0), "it is told again"
    assert len(runtime.launches) == 1, "no job runs twice"


def test_a_job_entered_but_not_launched_is_launched_by_the_next_service(tmp_path: Path) -> None:
    runtime = StillRuntime(cluster=None)
    with serving(tmp_path, runtime) as world:
        id = world.submit()
        until(lambda: "no Ray cluster answers" in world.job(id)["reason"])
    runtime.cluster = "first"
    with serving(tmp_path, runtime):
        until(lambda: id in runtime.alive)
    assert len(runtime.launches) == 1


def test_two_services_on_one_database_run_no_job_twice(tmp_path: Path) -> None:
    runtime = StillRuntime()
    with serving(tmp_path, runtime) as one, serving(tmp_path, runtime) as two:
        ids = [world.submit() for _ in range(10) for world in (one, two)]
        until(lambda: len(runtime.alive) == 20)
        for id in ids:
            runtime.enter(id, "RUNNING")
            runtime.tell(id, "metrics", {"train/loss": 1.0}, step=3)
        until(lambda: all(world.job(id)["step"] == 3 for world in (one, two) for id in ids))
        assert two.call("PATCH", f"/api/v1/jobs/{ids[0]}/knobs", json={"values": {"delta": 0.9}}).status_code == 200
        for id in ids:
            runtime.enter(id, "SUCCEEDED")
        until(lambda: all(one.job(id)["state"] == "SUCCEEDED" for id in ids))
    assert sorted(order.job for order in runtime.launches) == sorted(ids)


def test_when_the_cluster_goes_jobs_fail_with_that_reason(tmp_path: Path) -> None:
    runtime = StillRuntime()
    with serving(tmp_path, runtime) as world:
        id = world.running()
        runtime.lose_cluster()
        until(lambda: "does not answer now" in world.job(id)["reason"])
        assert world.job(id)["state"] == "RUNNING", "it may train on"
        runtime.unreachable_s = GRACE_S + 1
        until(lambda: world.job(id)["state"] == "FAILED")
        assert f"has not answered for {GRACE_S + 1:.0f} s" in world.job(id)["reason"]
        assert "on_cluster_loss: resume" in world.job(id)["reason"]


def test_when_another_cluster_comes_a_job_goes_on_from_its_checkpoint_if_it_should(tmp_path: Path) -> None:
    runtime = StillRuntime()
    with serving(tmp_path, runtime) as world:
        fails, resumes, has_none = (
            world.running(on_cluster_loss="fail"),
            world.running(on_cluster_loss="resume"),
            world.running(on_cluster_loss="resume"),
        )
        waits = world.submit()
        until(lambda: waits in runtime.alive)
        runtime.alive[resumes].checkpoints = 1
        runtime.lose_cluster()
        runtime.cluster = "second"
        until(lambda: resumes in runtime.alive)
        until(lambda: waits in runtime.alive)
        until(lambda: world.job(fails)["is_terminal"] and world.job(has_none)["is_terminal"])
        assert "the Ray cluster it ran on is gone" in world.job(fails)["reason"]
        assert "checkpoint.every_rounds" in world.job(has_none)["reason"]
        assert world.job(resumes)["launches"] == 2
        assert [order.again for order in runtime.launches if order.job == resumes] == [False, True]
        runtime.enter(resumes, "SUCCEEDED")
        until(lambda: world.job(resumes)["state"] == "SUCCEEDED")


def test_what_runs_of_a_job_that_has_ended_in_the_books_is_cleared_away(tmp_path: Path) -> None:
    runtime = StillRuntime()
    with serving(tmp_path, runtime) as world:
        id = world.running()
        job = runtime.alive[id]
        runtime.lose_cluster(unreachable_s=GRACE_S + 1)
        until(lambda: world.job(id)["state"] == "FAILED")
        time.sleep(1.1)
        runtime.alive[id] = runtime.alive["somebody-elses"] = job  # the network was away, not the cluster
        runtime.cluster = "first"
        until(lambda: id not in runtime.alive)
        assert "somebody-elses" in runtime.alive


def test_a_job_that_cannot_be_started_fails_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from raysync.errors import CheckpointError

    async def refuse(order: object) -> str:
        raise CheckpointError("/x", "was taken of another job")

    runtime = StillRuntime()
    monkeypatch.setattr(runtime, "launch", refuse)
    with serving(tmp_path, runtime) as world:
        id = world.submit()
        until(lambda: world.job(id)["state"] == "FAILED")
        assert "was taken of another job" in world.job(id)["reason"]


def test_a_long_job_is_thinned_while_it_runs_and_streams_tell(tmp_path: Path) -> None:
    runtime = StillRuntime()
    with serving(tmp_path, runtime, events_per_job=1000) as world:
        id = world.running()
        for step in range(3000):
            runtime.tell(id, "metrics", {"train/loss": 1.0}, step=step)
        runtime.enter(id, "SUCCEEDED")
        until(lambda: world.job(id)["is_terminal"], 30)
        text = world.call("GET", f"/api/v1/jobs/{id}/events/stream").text
        assert text.count("event: gap") >= 1
        numbers = [int(line[4:]) for line in text.splitlines() if line.startswith("id: ")]
        assert len(numbers) < 2500
        assert numbers[-500:-1] == list(range(numbers[-500], numbers[-2] + 1)), "the newest are whole"


def test_processes_are_known_by_number_and_birth() -> None:
    me = own_id()
    assert not is_dead(me)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    host, _, _ = me.partition("/")
    theirs = f"{host}/{child.pid}/{born(child.pid)}/x"
    assert not is_dead(theirs)
    child.kill()
    child.wait()
    assert is_dead(theirs)
    assert is_dead(f"{host}/{os.getpid()}/12345/x"), "the number is another process's now"
    assert not is_dead("elsewhere/1/2/3")
    assert not is_dead("nonsense")

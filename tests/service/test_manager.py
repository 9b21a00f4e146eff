"""Jobs looked after: launched once, followed, found again, ended with a reason whatever goes away."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from raysync.control.adopt import MAX_LAUNCHES
from raysync.errors import RuntimeLost
from raysync.ports import Launch
from raysync.reason import MAX_SHORT
from service.runtime.processes import born, is_dead, own_id
from service.server.app import create_app
from service.server.wiring import assemble
from service.store import Store
from tests.service.conftest import World, settings_for, tokens_for, until
from tests.service.still_runtime import StillJob, StillRuntime


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
            assert runtime.alive[id].stopped == ("admin stopped it: enough", 60.0), "it is told again"
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


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence and a missing controller are noticed at once."""
    monkeypatch.setattr("raysync.control.adopt.GRACE_S", 0.5)
    monkeypatch.setattr("raysync.control.adopt.MISSING_S", 0.5)


@pytest.mark.parametrize("policy", ["fail", "resume"])
def test_silence_is_not_death(tmp_path: Path, impatient: None, policy: str) -> None:
    runtime = StillRuntime()
    with serving(tmp_path, runtime) as world:
        id = world.running(on_cluster_loss=policy)
        controllers = dict(runtime.alive)
        runtime.lose_cluster(unreachable_s=1e6)
        until(lambda: world.job(id)["state"] == "RECOVERING")
        assert "may train on" in world.job(id)["reason"]
        assert world.parts.store.jobs.get(id).lease_owner is None, "the lease is given up"
        time.sleep(1.5)
        assert world.job(id)["state"] == "RECOVERING"
        runtime.alive.update(controllers)  # the network was away, not the cluster
        runtime.cluster = "first"
        until(lambda: world.job(id)["state"] == "RUNNING")
        time.sleep(1.5)
        assert id in runtime.alive, "nobody has killed it"
        assert runtime.forgotten == []
        runtime.enter(id, "SUCCEEDED")
        until(lambda: world.job(id)["state"] == "SUCCEEDED")
    assert len(runtime.launches) == 1


def test_a_reason_too_long_for_lists_is_noted_once(
    tmp_path: Path, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = StillRuntime()
    runtime.address = f"{'head.' * 30}:6379"
    with serving(tmp_path, runtime) as world:
        id = world.running()
        runtime.address = "another:6379"
        runtime.lose_cluster(unreachable_s=1e6)
        until(lambda: "has not answered" in world.job(id)["reason"])
        assert len(world.job(id)["traceback"]) > MAX_SHORT >= len(world.job(id)["reason"])
        note, noted = world.parts.store.leases.note, list[Any]()
        monkeypatch.setattr(world.parts.store.leases, "note", lambda *given: (noted.append(given), note(*given)))
        time.sleep(2.5)
        assert noted == []


def test_a_stop_during_silence_is_told_when_the_cluster_answers(tmp_path: Path, impatient: None) -> None:
    runtime = StillRuntime()
    with serving(tmp_path, runtime) as world:
        id = world.running()
        controllers = dict(runtime.alive)
        runtime.lose_cluster(unreachable_s=1e6)
        assert world.call("POST", f"/api/v1/jobs/{id}/stop", json={"reason": "enough"}).status_code == 202
        until(lambda: "told to stop" in world.job(id)["reason"])
        assert not world.job(id)["is_terminal"]
        runtime.alive.update(controllers)
        runtime.cluster = "first"
        until(lambda: runtime.alive[id].stopped == ("admin stopped it: enough", 60.0))


def test_a_job_fails_when_its_own_cluster_answers_without_its_controller(tmp_path: Path, impatient: None) -> None:
    runtime = StillRuntime()
    with serving(tmp_path, runtime) as world:
        id = world.running()
        runtime.lose_cluster(unreachable_s=1e6)
        until(lambda: world.job(id)["state"] == "RECOVERING")
        runtime.cluster = "first"
        until(lambda: world.job(id)["state"] == "FAILED")
        assert "its controller is gone" in world.job(id)["reason"]
        assert "on_cluster_loss: resume" in world.job(id)["reason"]


def test_a_controller_that_is_found_again_at_once_was_never_gone(tmp_path: Path) -> None:
    runtime = StillRuntime()
    with serving(tmp_path, runtime) as world:
        id = world.running()
        controllers = dict(runtime.alive)
        runtime.alive.clear()
        time.sleep(2.0)
        runtime.alive.update(controllers)
        runtime.tell(id, "metrics", {"train/loss": 0.1}, step=9)
        until(lambda: world.job(id)["step"] == 9)
        assert world.job(id)["state"] == "RUNNING"


def test_of_two_services_the_one_without_ray_harms_no_job(tmp_path: Path, impatient: None) -> None:
    """The one that follows a job loses Ray: the other takes it over, and it never looks lost."""
    runtime, other = StillRuntime(), StillRuntime(cluster=None)
    other.folders, other.alive = runtime.folders, dict[str, StillJob]()
    with serving(tmp_path, runtime) as one, serving(tmp_path, other) as two:
        id = one.running()
        other.alive, other.cluster = dict(runtime.alive), "first"
        runtime.lose_cluster(unreachable_s=1e6)
        until(lambda: one.parts.store.jobs.get(id).lease_owner == two.parts.manager.id)
        time.sleep(2.0)
        assert one.job(id)["state"] == two.job(id)["state"] == "RUNNING"
        other.tell(id, "metrics", {"train/loss": 0.1}, step=9)
        until(lambda: one.job(id)["step"] == 9)
        late = two.submit()
        until(lambda: late in other.alive)
    assert len(runtime.launches) + len(other.launches) == 2


def test_a_service_of_another_cluster_judges_no_job_of_this_one(tmp_path: Path, impatient: None) -> None:
    runtime, other = StillRuntime(), StillRuntime(cluster="second")
    other.address = "there:6379"
    with serving(tmp_path, runtime) as world:
        id = world.running()
    with serving(tmp_path, other) as world:
        until(lambda: world.job(id)["state"] == "RECOVERING")
        assert "here:6379" in world.job(id)["reason"]
        time.sleep(1.5)
        assert not world.job(id)["is_terminal"]
        assert world.parts.store.jobs.move("here:6379", "there:6379") == 1  # serve --replaces-ray here:6379
        until(lambda: world.job(id)["state"] == "FAILED")
        assert "the Ray cluster it ran on is gone" in world.job(id)["reason"]
    with serving(tmp_path, runtime):
        time.sleep(1.5)
        assert id in runtime.alive, "a service that comes back kills no job that has not ended by its own word"


def test_a_restart_that_cannot_join_the_cluster_leaves_jobs_alone(tmp_path: Path, impatient: None) -> None:
    runtime = StillRuntime()
    with serving(tmp_path, runtime) as world:
        id = world.running()
    wrong = StillRuntime(cluster=None)
    wrong.problem, wrong.unreachable_s = "it could not join: the token is wrong", 1e6
    with serving(tmp_path, wrong) as world:
        until(lambda: world.job(id)["state"] == "RECOVERING")
    with serving(tmp_path, runtime) as world:
        until(lambda: world.job(id)["state"] == "RUNNING")
        time.sleep(1.5)
        assert id in runtime.alive
    assert runtime.forgotten == []
    assert len(runtime.launches) == 1


def test_starts_that_no_cluster_answers_to_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = StillRuntime()
    launch, tries = runtime.launch, list[int]()

    async def deaf(order: Launch) -> str:
        tries.append(1)
        if len(tries) < MAX_LAUNCHES + 2:
            raise RuntimeLost("no answer to launch within 60 s")
        return await launch(order)

    monkeypatch.setattr(runtime, "launch", deaf)
    monkeypatch.setattr("service.jobs.follower._LOOK_S", 0.05)
    with serving(tmp_path, runtime) as world:
        id = world.submit()
        until(lambda: id in runtime.alive)
        until(lambda: world.job(id)["launches"] <= 2)


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


def test_what_runs_of_a_job_that_has_ended_is_cleared_away(tmp_path: Path) -> None:
    runtime = StillRuntime()
    with serving(tmp_path, runtime) as world:
        id = world.finished()
        until(lambda: id in runtime.forgotten)
        job, wrongly = runtime.folders[id], world.running()
        world.parts.store.jobs.change(wrongly, {"state": "FAILED", "reason": "an older service thought so"})
    with serving(tmp_path, runtime):
        runtime.alive[id] = runtime.alive["somebody-elses"] = job
        runtime.cluster = "first again"
        until(lambda: id not in runtime.alive)
        assert "somebody-elses" in runtime.alive
        assert wrongly in runtime.alive, "it has not ended by its own word"


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

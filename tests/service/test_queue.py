"""Jobs wait in line before anything of them runs: first in, first out within a priority."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from service.settings import Settings
from service.store import Store
from tests.service.conftest import World, until
from tests.service.still_runtime import StillRuntime
from tests.service.test_manager import serving
from tests.service.test_store import books, postgres, row

__all__ = ["books", "postgres"]


def launched(runtime: StillRuntime) -> list[str]:
    return [order.job for order in runtime.launches]


def end(world: World, id: str) -> None:
    world.runtime.enter(id, "SUCCEEDED")
    until(lambda: world.job(id)["is_terminal"])


def test_sixty_submissions_start_as_many_as_may_live(tmp_path: Path) -> None:
    runtime = StillRuntime()
    with serving(tmp_path, runtime, max_live_jobs=3) as world:
        ids = [world.submit() for _ in range(60)]
        until(lambda: len(runtime.launches) == 3)
        until(lambda: "max_live_jobs" in world.job(ids[-1])["reason"])
        time.sleep(1.5)
        assert sorted(launched(runtime)) == sorted(ids[:3]), "the first ones"
        assert [world.job(id)["queue_position"] for id in (ids[0], ids[3], ids[59])] == [None, 1, 57]
        assert world.job(ids[3])["state"] == "PENDING"
        listed = world.call("GET", "/api/v1/jobs?limit=200").json()["items"]
        assert {job["id"]: job["queue_position"] for job in listed} == dict(
            zip(ids, [None] * 3 + list(range(1, 58)), strict=True)
        )
        assert all("max_live_jobs" in job["reason"] for job in listed if job["queue_position"])
        answer = world.call("PATCH", f"/api/v1/jobs/{ids[3]}/knobs", json={"values": {"delta": 0.5}})
        assert (answer.status_code, answer.json()["version"]) == (200, 1), "nothing of it runs"
        assert world.call("POST", f"/api/v1/jobs/{ids[3]}/checkpoints").status_code == 409
        end(world, ids[1])
        until(lambda: len(runtime.launches) == 4)
        assert launched(runtime)[-1] == ids[3]
        assert runtime.launches[-1].knobs is not None
        assert runtime.launches[-1].knobs.values["delta"] == 0.5, "it starts as it was turned in the line"
        assert world.job(ids[4])["queue_position"] == 1
        assert world.call("GET", "/readyz", role=None).json()["max_live_jobs"] == 3
        text = world.call("GET", "/metrics").text
        assert "raysync_queued_jobs 56.0" in text
        assert "raysync_max_live_jobs 3.0" in text


def test_a_larger_priority_goes_first_and_a_stop_leaves_the_line(tmp_path: Path) -> None:
    runtime = StillRuntime()
    with serving(tmp_path, runtime, max_live_jobs=1) as world:
        first = world.submit()
        until(lambda: first in runtime.alive)
        idle, plain, urgent, later = (world.submit(priority=priority) for priority in (-1, 0, 7, 0))
        assert [world.job(id)["queue_position"] for id in (urgent, plain, later, idle)] == [1, 2, 3, 4]
        assert world.job(urgent)["priority"] == 7
        assert world.call("POST", f"/api/v1/jobs/{plain}/stop", json={"reason": "not needed"}).status_code == 202
        until(lambda: world.job(plain)["state"] == "STOPPED")
        assert world.job(plain)["reason"] == "admin stopped it: not needed, before it started"
        assert world.job(plain)["queue_position"] is None
        assert world.job(later)["queue_position"] == 2
        for id in (first, urgent, later):
            until(lambda job=id: job in runtime.alive)
            end(world, id)
        until(lambda: idle in runtime.alive)
    assert launched(runtime) == [first, urgent, later, idle]
    refused = Settings.model_json_schema()["properties"]["max_live_jobs"]
    assert refused["anyOf"][0]["minimum"] == 1


def test_two_services_agree_on_the_line(tmp_path: Path) -> None:
    runtime, most = StillRuntime(), 0
    with serving(tmp_path, runtime, max_live_jobs=4) as one, serving(tmp_path, runtime, max_live_jobs=4) as two:
        ids = [(one, two)[n % 2].submit() for n in range(16)]
        assert one.job(ids[15])["queue_position"] == two.job(ids[15])["queue_position"]
        while len(runtime.launches) < 16:
            alive = [id for id in ids if id in runtime.alive]
            most = max(most, len(alive))
            if alive:
                runtime.enter(alive[0], "SUCCEEDED")
                until(lambda alive=alive: alive[0] not in runtime.alive)
            time.sleep(0.02)
        for id in ids:
            if id in runtime.alive:
                runtime.enter(id, "SUCCEEDED")
        until(lambda: all(one.job(id)["state"] == "SUCCEEDED" for id in ids))
    assert most == 4
    assert sorted(launched(runtime)) == sorted(ids), "each once"
    for n in range(0, 16, 4):  # what was let in together may start in any order
        assert launched(runtime).index(ids[n]) < n + 4


def test_the_line_outlives_a_service_and_a_cluster(tmp_path: Path) -> None:
    runtime = StillRuntime(cluster=None)
    with serving(tmp_path, runtime, max_live_jobs=2) as world:
        ids = [world.submit() for _ in range(5)]
        until(lambda: "no Ray cluster answers" in world.job(ids[4])["reason"])
        assert world.job(ids[4])["queue_position"] == 5
    runtime.cluster = "first"
    with serving(tmp_path, runtime, max_live_jobs=2) as world:
        until(lambda: len(runtime.launches) == 2)
        assert sorted(launched(runtime)) == sorted(ids[:2])
        assert world.job(ids[4])["queue_position"] == 3
    with serving(tmp_path, runtime, max_live_jobs=3) as world:
        until(lambda: len(runtime.launches) == 3)
        assert launched(runtime)[-1] == ids[2]


def test_the_line_in_the_books(books: Store) -> None:
    for n in range(6):
        books.jobs.add(row(f"job-{n}", created_s=100.0 - n // 2, priority=n % 2))
    order = ["job-5", "job-3", "job-1", "job-4", "job-2", "job-0"]
    places = books.queue.positions([f"job-{n}" for n in range(6)])
    assert sorted(places, key=places.__getitem__) == order
    assert books.queue.admit(2, "here:6379", 1.0) == ("job-5", "job-3")
    assert books.queue.admit(2, "here:6379", 2.0) == ()
    assert books.queue.positions(["job-5", "job-1"]) == {"job-1": 1}
    assert "max_live_jobs" in books.jobs.get("job-1").reason
    books.jobs.change("job-5", {"state": "SUCCEEDED"})
    assert books.queue.admit(2, "here:6379", 3.0) == ("job-1",)
    books.jobs.count_launch("job-3", "there:6379")
    assert books.queue.admit(2, "here:6379", 4.0) == ("job-4",), "a job on another cluster takes no place on this one"
    assert books.queue.count() == 2


@pytest.mark.parametrize(
    ("given", "count"),
    [({"num_cpus": 6}, 6), ({"ray_address": "10.0.0.1:6379"}, 64), ({"max_live_jobs": 9, "num_cpus": 6}, 9)],
)
def test_how_many_jobs_live_at_once_by_default(given: dict[str, object], count: int) -> None:
    assert Settings(**given).live_jobs == count  # type: ignore[arg-type]

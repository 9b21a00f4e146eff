"""What a reading with fresh eyes found: each of these went wrong once."""

from __future__ import annotations

import io
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy.exc import SQLAlchemyError

from raysync.control.states import JobState
from raysync.errors import RaysyncError, RuntimeFailed, RuntimeLost, StorageError
from raysync.events import Event
from raysync.ports import JobStatus
from service import logs
from service.cli.watch import table_of
from service.client.stream import SseReader
from service.client.transport import find_service
from service.http.schemas import JobCreate, JobSummary
from service.http.views import read_cursor
from service.jobs.packages import Limits, unpack
from service.runtime.local_ray import EmbeddedRay
from service.store import Store
from service.store.keys import Key
from service.store.packages import PackageRow
from tests.service.conftest import SPEC, World, until
from tests.service.still_runtime import StillRuntime
from tests.service.test_manager import serving
from tests.service.test_packages import packed
from tests.service.test_store import books, postgres, records, row

__all__ = ["books", "postgres"]


def together(count: int, work: Any) -> list[Any]:
    """Run something in many threads at once; return what each came to."""
    gate, found = threading.Barrier(count), list[Any]()

    def one(number: int) -> None:
        gate.wait(10)
        try:
            found.append(work(number))
        except (SQLAlchemyError, OSError) as error:
            found.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found


def test_a_package_unpacked_by_many_at_once_is_whole(tmp_path: Path) -> None:
    files: dict[str, bytes | str] = {f"part_{n}.py": f"x = {n}\n" * 2000 for n in range(20)}
    content = packed(files)
    for turn in range(10):
        target = tmp_path / f"package-{turn}"
        assert together(6, lambda _, target=target: unpack(content, target, Limits(100, 1 << 24))) == [target] * 6
        assert {path.name: path.read_text() for path in target.iterdir()} == files
    assert len(list(tmp_path.iterdir())) == 10, "no scratch is left"


def test_an_event_cut_off_in_its_middle_is_asked_for_again() -> None:
    reader = SseReader()
    for line in ("id: 4", "event: metrics", "data: {}", "", "id: 5", "event: metrics"):
        reader.feed(line)
    assert reader.last_id == "4"


def test_one_key_at_once_makes_one_job(books: Store) -> None:
    found = together(8, lambda n: books.jobs.add(row(f"job-{n}"), Key("t", "k", "d"))[0].id)
    assert len({*found}) == 1, found
    package = PackageRow("a" * 64, "me", 1.0, 3, ("x",))
    assert together(8, lambda _: books.packages.add(package, b"zip")) == [package] * 8


def test_two_followers_count_every_event_once(books: Store) -> None:
    books.jobs.add(row())
    batches = [records(first, 40) for first in range(0, 400, 40)]

    def follow(number: int) -> None:
        for batch in batches:
            books.events.append("job-1", batch, {})

    together(3, follow)
    job = books.jobs.get("job-1")
    assert (job.last_sequence, job.num_events) == (399, 400)
    assert [event.sequence for event in books.events.after("job-1", -1, 1000)] == list(range(400))


def test_a_reason_with_any_character_can_be_kept(books: Store) -> None:
    books.jobs.add(row())
    end = Event(sequence=0, kind="state", time_s=0.0, data={"state": "FAILED", "reason": "a\x00b"})
    books.events.append("job-1", [end], {"state": "FAILED", "reason": "a\x00b"})
    assert books.jobs.get("job-1").reason == "ab"


def test_a_stop_asked_of_another_service_is_told(tmp_path: Path) -> None:
    runtime, deaf = StillRuntime(), StillRuntime(cluster=None)
    deaf.folders = runtime.folders
    with serving(tmp_path, runtime) as one, serving(tmp_path, deaf) as two:
        id = one.running()
        assert two.call("POST", f"/api/v1/jobs/{id}/stop", json={"reason": "enough"}).status_code == 202
        until(lambda: runtime.alive[id].stopped is not None)


def test_a_job_whose_journal_lost_its_end_ends_in_the_books(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    id = world.running()
    job = world.runtime.alive[id]
    status = world.runtime.status

    async def ended(job: str) -> JobStatus:
        return msgspec.structs.replace(await status(job), state=JobState.SUCCEEDED, reason="it was done")

    job.records.pop()  # a controller that came back numbers anew, and what it numbers so is known already
    monkeypatch.setattr(world.runtime, "status", ended)
    until(lambda: world.job(id)["state"] == "SUCCEEDED")
    assert world.job(id)["reason"] == "it was done"


def test_a_slow_sweep_keeps_no_job_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    async def slow() -> list[str]:
        await asyncio.sleep(20)
        return []

    runtime = StillRuntime()
    monkeypatch.setattr(runtime, "jobs", slow)
    with serving(tmp_path, runtime) as world:
        id = world.submit()
        until(lambda: id in runtime.alive, 5)
        assert [order.job for order in runtime.launches] == [id]


@pytest.mark.parametrize("hiccup", [RuntimeFailed("RayError", "a hiccup"), StorageError("s3://bucket", "a hiccup")])
def test_a_start_that_fails_for_now_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hiccup: RaysyncError
) -> None:
    runtime = StillRuntime()
    launch, tries = runtime.launch, list[int]()

    async def fragile(order: Any) -> str:
        tries.append(1)
        if len(tries) < 3:
            raise hiccup
        return await launch(order)

    monkeypatch.setattr(runtime, "launch", fragile)
    with serving(tmp_path, runtime) as world:
        id = world.submit()
        until(lambda: "a hiccup" in world.job(id)["reason"])
        until(lambda: id in runtime.alive)
        assert len(tries) == 3
        assert not world.job(id)["is_terminal"]


def test_a_full_disk_is_told_as_that(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(id: str) -> str:
        raise OSError(28, "No space left on device")

    content = packed({"mine.py": "x = 1"})
    package = world.call(
        "POST", "/api/v1/packages", content=content, headers={"Content-Type": "application/zip"}
    ).json()
    monkeypatch.setattr(world.parts.manager._follower, "_unpack", full)
    id = world.submit(package=package["id"])
    until(lambda: world.job(id)["state"] == "FAILED")
    assert "No space left on device" in world.job(id)["reason"]
    assert world.job(id)["launches"] == 0


def test_knob_versions_do_not_go_back_with_a_job_that_does(world: World) -> None:
    id = world.running()
    path = f"/api/v1/jobs/{id}/knobs"
    world.call("PATCH", path, json={"values": {"delta": 0.9}})
    until(lambda: world.call("GET", path).json()["version_in_force"] == 1)
    board = world.runtime.alive[id].board
    asked = board.knobs
    board.load_state_dict({"knobs": {"version": 0, "values": {**board.knobs.values, "delta": 0.3}}, "_waiting": []})
    board.adopt(asked, why="turned after the checkpoint it went on from")  # as a coordinator does that went back
    world.runtime.enter(id, "RECOVERING")
    world.runtime.tell(id, "metrics", {"train/loss": 1.0}, step=9)
    until(lambda: world.job(id)["step"] == 9)
    found = world.call("GET", path).json()
    assert (found["version"], found["version_in_force"], found["values"]["delta"]) == (1, 1, 0.9)
    old = world.call("PATCH", path, json={"values": {"delta": 0.5}}, headers={"If-Match": '"0"'})
    assert old.status_code == 412, "what was read before the change does not overwrite it"
    new = world.call("PATCH", path, json={"values": {"delta": 0.5}}, headers={"If-Match": '"1"'})
    assert (new.status_code, new.json()["version"]) == (200, 2)


def test_a_job_whose_controller_lost_its_knobs_has_its_checkpoints(world: World) -> None:
    """As after its folder went with its machine: what the runtime has is a version that was never told."""
    id = world.running()
    path = f"/api/v1/jobs/{id}/knobs"
    world.call("PATCH", path, json={"values": {"delta": 0.9}})
    until(lambda: world.call("GET", path).json()["version_in_force"] == 1)
    board = world.runtime.alive[id].board
    board.load_state_dict({"knobs": {"version": 0, "values": {**board.knobs.values, "delta": 0.3}}, "_waiting": []})
    world.runtime.enter(id, "RECOVERING")
    world.runtime.enter(id, "RUNNING")
    until(lambda: world.call("GET", path).json()["values"]["delta"] == 0.3)
    assert world.call("GET", path).json()["version"] == 2, "a version never comes again"
    for old in ('"0"', '"1"'):
        refused = world.call("PATCH", path, json={"values": {"delta": 0.5}}, headers={"If-Match": old})
        assert refused.status_code == 412
    answer = world.call("PATCH", path, json={"values": {"delta": 0.5}}, headers={"If-Match": '"2"'})
    assert (answer.status_code, answer.headers["ETag"]) == (200, '"3"')


def test_log_streams_end_with_the_job_also_without_ray(world: World) -> None:
    id = world.finished()
    world.runtime.lose_cluster()
    assert "event: end" in world.call("GET", f"/api/v1/jobs/{id}/logs/stream").text


def test_the_token_of_this_machine_goes_nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYSYNC_DATA", str(tmp_path))
    (tmp_path / "client.json").write_text('{"url": "http://127.0.0.1:9", "token": "secret"}')
    assert find_service().token == "secret"
    assert find_service("http://127.0.0.1:9/").token == "secret"
    assert find_service("http://other.example").token == ""
    (tmp_path / "client.json").write_text("{torn")
    assert find_service("http://a", "t") == ("http://a", "t")


def test_a_body_with_thousands_of_mistakes_is_answered_shortly(world: World) -> None:
    started_s = time.monotonic()
    answer = world.call("POST", "/api/v1/jobs", json={"spec": {**SPEC, **{f"f{n}": 0 for n in range(50_000)}}})
    assert answer.status_code == 422
    assert len(answer.json()["errors"]) == 20
    assert time.monotonic() - started_s < 8


def test_nobody_writes_our_log_or_terminal(world: World) -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "GET %s", ("/x\n12:00 error forged\x1b[31m",), None)
    assert "\n" not in logs.Plain().format(record)
    assert "\x1b" not in logs.Plain().format(record)
    job = JobSummary.model_validate({**world.job(world.finished("FAILED")), "reason": "bad [/data/x.npz] [red]"})
    assert table_of([job]).row_count == 1
    from rich.console import Console

    console = Console(width=250, record=True, file=io.StringIO())
    console.print(table_of([job]))
    assert "[/data/x.npz]" in console.export_text()


@pytest.mark.parametrize("requirement", ["foo==1.0 --global-option=x", "foo>=1 --index-url=evil", "foo >=1"])
def test_a_requirement_is_no_option(requirement: str) -> None:
    with pytest.raises(ValueError, match="pip"):
        JobCreate.model_validate({"spec": SPEC, "pip": [requirement]})


def test_odd_digits_and_cursors_are_refused(world: World) -> None:
    id = world.running()
    answer = world.call(
        "PATCH", f"/api/v1/jobs/{id}/knobs", json={"values": {"delta": 1}}, headers={"If-Match": b'"\xb2"'}
    )
    assert answer.status_code == 412, "it is an entity tag, but not one of ours"
    from service.errors import BadRequest

    with pytest.raises(BadRequest):
        read_cursor("WzEuMCwgIlx1MDAwMCJd")  # a NUL for an id


def test_while_a_job_waits_its_reason_follows_and_is_not_kept_for_ever(world: World) -> None:
    id = world.submit()
    until(lambda: id in world.runtime.alive)
    world.runtime.tell(id, "reason", {"state": "PENDING", "reason": "2 workers need 9 CPU each; 0 fit now"})
    until(lambda: "0 fit now" in world.job(id)["reason"])
    events = world.parts.store.events
    assert [row.kind for row in events.after(id, -1, 10, "reason")] == ["reason"]
    for step in range(60):
        world.runtime.tell(id, "reason", {"state": "PENDING", "reason": f"{step} fit now"})
    until(lambda: len(events.after(id, -1, 100, "reason")) == 61)
    events.thin(id, 20)
    assert len(events.after(id, -1, 100, "reason")) < 61


def test_a_ray_that_is_still_coming_up_is_given_up_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a node that never comes up: whoever waits for it is released, and its process is gone."""
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 100\n")
    slow.chmod(0o700)
    monkeypatch.setattr("service.runtime.local_ray.sys.executable", str(slow))
    node, problems = EmbeddedRay(tmp_path / "ray", os.environ, 1), list[str]()

    def wait() -> None:
        try:
            node.address()
        except RuntimeLost as error:
            problems.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    until(lambda: node.is_up)
    started_s = time.monotonic()
    node.give_up()
    waiting.join(20)
    assert time.monotonic() - started_s < 5
    assert "did not come up" in problems[0]
    assert not node.is_up
    with pytest.raises(RuntimeLost, match="is ending"):
        node.address()

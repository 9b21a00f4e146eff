"""Numbers that never go back: events, versions of knobs, totals, whatever the runtime loses."""

from __future__ import annotations

import itertools
import re
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from raysync.events import Event
from service.jobs.projection import projected
from service.store import Store
from tests.service.conftest import World, until
from tests.service.still_runtime import StillJob, StillRuntime
from tests.service.test_manager import serving
from tests.service.test_store import books, postgres, records, row

__all__ = ["books", "postgres"]


def events_of(world: World, id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = world.call("GET", f"/api/v1/jobs/{id}/events?limit=2000").json()["items"]
    return found


def marks_of(world: World, id: str) -> list[int]:
    return [event["data"]["mark"] for event in events_of(world, id) if "mark" in event["data"]]


def lose_tail(job: StillJob, count: int) -> None:
    """Let a journal lose its last events; its next writer numbers on from what is left."""
    del job.records[-count:]


def restarted(runtime: StillRuntime, id: str, lost: int, new: int, incarnation: int) -> None:
    """Let a controller die with the end of its journal, and come back; who follows it does not hear of all that."""
    job = runtime.folders[id]
    if incarnation == 0:  # then only its absence tells
        del runtime.alive[id]
        time.sleep(0.1)
    lose_tail(job, lost)
    mark(runtime, id, range(1000, 1000 + new), incarnation)
    runtime.alive[id] = job


def mark(runtime: StillRuntime, id: str, marks: range, incarnation: int = 0) -> None:
    for number in marks:
        runtime.tell(id, "metrics", {"mark": number}, step=number)
        found = runtime.folders[id].records
        found[-1] = msgspec.structs.replace(found[-1], incarnation=incarnation)


@pytest.mark.parametrize("incarnation", [0, 1])
@pytest.mark.parametrize(("lost", "new"), [(5, 3), (5, 5), (5, 40), (300, 10), (300, 700)])
def test_events_numbered_as_lost_ones_were_are_taken_in(world: World, lost: int, new: int, incarnation: int) -> None:
    """While it is followed: whether the journal is still behind what was taken, level with it, or ahead."""
    id = world.running()
    mark(world.runtime, id, range(400))
    until(lambda: len(marks_of(world, id)) == 400)
    restarted(world.runtime, id, lost, new, incarnation)
    until(lambda: marks_of(world, id) == [*range(400), *range(1000, 1000 + new)])
    mark(world.runtime, id, range(2000, 2005), incarnation)
    until(lambda: marks_of(world, id)[-5:] == [*range(2000, 2005)])
    world.runtime.enter(id, "SUCCEEDED")
    until(lambda: world.job(id)["is_terminal"])
    numbers = [event["sequence"] for event in events_of(world, id)]
    assert numbers == list(range(len(numbers))), "no number comes twice, none is missing"
    assert len(marks_of(world, id)) == 405 + new, "each once"


@pytest.mark.parametrize(("lost", "new"), [(5, 3), (5, 40), (300, 10)])
def test_events_numbered_as_lost_ones_were_are_read_from_the_folder(tmp_path: Path, lost: int, new: int) -> None:
    """The same while no service listens, and the job ends meanwhile."""
    runtime = StillRuntime()
    with serving(tmp_path, runtime) as world:
        id = world.running()
        mark(runtime, id, range(400))
        until(lambda: len(marks_of(world, id)) == 400)
    lose_tail(runtime.folders[id], lost)
    mark(runtime, id, range(1000, 1000 + new))
    runtime.enter(id, "SUCCEEDED")
    runtime.alive.clear()
    with serving(tmp_path, runtime) as world:
        until(lambda: world.job(id)["state"] == "SUCCEEDED")
        assert marks_of(world, id) == [*range(400), *range(1000, 1000 + new)]
        assert world.job(id)["reason"] == "the test says so", "its own word, not a guess"


def test_events_told_again_as_they_were_are_known(world: World) -> None:
    """A coordinator that outlived its controller tells again what the journal lost: the same events, not new ones."""
    id = world.running()
    mark(world.runtime, id, range(50))
    until(lambda: len(marks_of(world, id)) == 50)
    lost = world.runtime.folders[id].records[-5:]
    lose_tail(world.runtime.folders[id], 5)
    world.runtime.folders[id].records += [msgspec.structs.replace(record, incarnation=1) for record in lost]
    mark(world.runtime, id, range(50, 60), incarnation=1)
    until(lambda: len(marks_of(world, id)) >= 60)
    assert marks_of(world, id) == [*range(60)]


def test_two_followers_take_in_what_a_journal_lost_once(books: Store) -> None:
    from service.store.events import Restart

    books.jobs.add(row())
    books.events.append("job-1", records(0, 10), {})
    again = Restart(first=7, last_sequence=9)
    for _ in range(2):
        books.events.append("job-1", records(7, 2, mark=1), {}, restart=again)
    found = books.jobs.get("job-1")
    assert (found.last_sequence, found.num_events, found.source_sequence) == (11, 12, 8)
    assert [event.sequence for event in books.events.after("job-1", -1, 100)] == list(range(12))
    assert {number: event.sequence for number, event in books.events.known_after("job-1", 6).items()} == {
        7: 10, 8: 11, 9: 9,
    }  # fmt: skip


def knobs_of(world: World, id: str) -> dict[str, Any]:
    found: dict[str, Any] = world.call("GET", f"/api/v1/jobs/{id}/knobs").json()
    return found


def test_an_old_if_match_overwrites_nobodys_change_after_the_runtime_went_back(world: World) -> None:
    """One reads version 1; the runtime loses it and makes another version 1 of somebody else's change."""
    id = world.running()
    path = f"/api/v1/jobs/{id}/knobs"
    seen = world.call("PATCH", path, json={"values": {"delta": 0.9}}).headers["ETag"]
    until(lambda: knobs_of(world, id)["version_in_force"] == 1)
    board = world.runtime.alive[id].board
    board.load_state_dict({"knobs": {"version": 0, "values": {**board.knobs.values, "delta": 0.3}}, "_waiting": []})
    other = world.call("PATCH", path, json={"values": {"delta": 0.7}})  # at once: nobody has noticed
    assert other.status_code == 200
    assert other.json()["version"] > 1, "a version that was told never comes again"
    assert world.call("PATCH", path, json={"values": {"delta": 0.1}}, headers={"If-Match": seen}).status_code == 412
    assert knobs_of(world, id)["values"]["delta"] == 0.7
    until(lambda: knobs_of(world, id)["version_in_force"] == other.json()["version"])
    last = world.call("PATCH", path, json={"values": {"delta": 0.2}}, headers={"If-Match": other.headers["ETag"]})
    assert last.status_code == 200
    versions = [event["knob_version"] for event in events_of(world, id) if event["kind"] == "knobs"]
    assert versions == sorted({*versions}), "also in the events"


@pytest.mark.parametrize("is_noted_first", [True, False])
def test_a_change_after_the_runtime_went_back_is_numbered_alike_by_its_event_and_its_note(
    books: Store, is_noted_first: bool
) -> None:
    """Who turned the knob notes it, who follows the job takes in its event: in either order."""

    def told(sequence: int, version: int, delta: float) -> None:
        data = {"before": {}, "after": {"delta": delta}, "asked_step": 0}
        record = Event(sequence=sequence, kind="knobs", time_s=0.0, knob_version=version, data=data)
        books.events.append("job-1", [record], lambda row, records: projected(row, records, 0.0))

    books.jobs.add(row())
    books.knobs.turned("job-1", 1, 0, {"delta": 0.9})
    told(0, 1, 0.9)
    books.jobs.change("job-1", {"knob_version_in_force": 1})  # as a status tells it, before or after the event
    steps = [lambda: told(1, 1, 0.7), lambda: books.knobs.turned("job-1", 1, 1, {"delta": 0.7})]
    for step in reversed(steps) if is_noted_first else steps:
        step()
    told(2, 2, 0.6)
    found = books.jobs.get("job-1")
    assert (found.knob_version, found.knob_version_in_force, found.knob_shift) == (3, 3, 1)
    assert found.knobs["delta"] == 0.6
    assert [event.knob_version for event in books.events.after("job-1", -1, 9)] == [1, 2, 3]


def test_a_change_that_a_coordinator_takes_over_again_is_no_other_one(books: Store) -> None:
    """Back at a checkpoint it is told the knobs turned since, and tells of them again; the next turn is the next."""

    def told(sequence: int, version: int, delta: float, **more: str) -> None:
        data = {"before": {}, "after": {"delta": delta}, "asked_step": 0, **more}
        record = Event(sequence=sequence, kind="knobs", time_s=0.0, knob_version=version, data=data)
        books.events.append("job-1", [record], lambda row, records: projected(row, records, 0.0))

    books.jobs.add(row())
    told(0, 1, 0.9)
    told(1, 1, 0.9, why="turned after the checkpoint it went on from")
    told(2, 2, 0.5)
    found = books.jobs.get("job-1")
    assert (found.knob_version, found.knob_version_in_force, found.knob_shift) == (2, 2, 0)
    assert [event.knob_version for event in books.events.after("job-1", -1, 9)] == [1, 1, 2]


def test_a_version_the_runtime_has_lost_leads_to_no_endless_conflict(world: World) -> None:
    id = world.running()
    path = f"/api/v1/jobs/{id}/knobs"
    world.call("PATCH", path, json={"values": {"delta": 0.9}})
    board = world.runtime.alive[id].board
    board.load_state_dict({"knobs": {"version": 0, "values": {**board.knobs.values, "delta": 0.3}}, "_waiting": []})
    for _ in range(2):
        etag = world.call("GET", path).headers["ETag"]
        answer = world.call("PATCH", path, json={"values": {"delta": 0.5}}, headers={"If-Match": etag})
        if answer.status_code == 200:
            break
        assert answer.status_code == 412
    assert answer.status_code == 200
    assert knobs_of(world, id)["values"]["delta"] == 0.5


def test_a_change_that_waits_is_not_taken_back_in_the_books(tmp_path: Path) -> None:
    """The runtime tells what is in force; what waits for the next decision is ahead of it."""
    runtime = StillRuntime()
    with serving(tmp_path, runtime) as world:
        id = world.running()
        board = runtime.alive[id].board
        board.turn({"delta": 0.9}, None)  # and no decision is made
        world.parts.store.knobs.turned(id, 1, 0, {**board.knobs.values, "delta": 0.9})
    with serving(tmp_path, runtime) as world:
        runtime.tell(id, "metrics", {"train/loss": 1.0}, step=5)
        until(lambda: world.job(id)["step"] == 5)
        found = knobs_of(world, id)
        assert (found["version"], found["version_in_force"], found["values"]["delta"]) == (1, 0, 0.9)


COUNTER = re.compile(r"^(raysync_\w+_total)(\{[^}]*\})? (\S+)$", re.MULTILINE)


def counters(world: World) -> dict[str, float]:
    text = world.call("GET", "/metrics").text
    return {name + labels: float(value) for name, labels, value in COUNTER.findall(text) if "http" not in name}


def test_totals_never_fall(tmp_path: Path) -> None:
    """A job goes back to a checkpoint, ends and is removed; the service is restarted."""
    runtime = StillRuntime()
    seen: list[dict[str, float]] = []

    def told(world: World, step: int, up: float, rounds: float) -> None:
        data = {"comm/bytes_up": up, "comm/bytes_down": up / 2, "sync/rounds": rounds, "mark": step}
        runtime.tell(id, "metrics", data, step=step)
        until(lambda: marks_of(world, id)[-1:] == [step])
        seen.append(counters(world))

    with serving(tmp_path, runtime) as world:
        id = world.running()
        told(world, 10, 1000.0, 10.0)
        told(world, 20, 2000.0, 20.0)
        told(world, 5, 600.0, 6.0)  # back at a checkpoint
        told(world, 15, 1600.0, 16.0)
    with serving(tmp_path, runtime) as world:
        seen.append(counters(world))
        told(world, 30, 3000.0, 30.0)
        mine = f'{{direction="up",job="{id}",strategy="selsync"}}'
        assert seen[-1][f"raysync_payload_bytes_total{mine}"] == 2000.0 + 2400.0
        assert seen[-1][f'raysync_sync_rounds_total{{job="{id}",strategy="selsync"}}'] == 20.0 + 24.0
        runtime.enter(id, "SUCCEEDED")
        until(lambda: world.job(id)["is_terminal"])
        seen.append(counters(world))
        assert world.call("DELETE", f"/api/v1/jobs/{id}").status_code == 204
        until(lambda: world.parts.store.removal.pending() == [])
        seen.append(counters(world))
    with serving(tmp_path, runtime) as world:
        seen.append(counters(world))
    for before, after in itertools.pairwise(seen):
        lower = {name for name in before.keys() & after.keys() if after[name] < before[name]}
        assert not lower
        assert {name for name in before if "job=" not in name} <= after.keys(), "what is of all jobs stays"
    assert seen[-1]['raysync_all_payload_bytes_total{direction="up",strategy="selsync"}'] == 4400.0
    assert seen[-1]['raysync_all_steps_total{strategy="selsync"}'] == 30.0
    assert seen[-1]['raysync_ended_jobs_total{state="SUCCEEDED"}'] == 1.0


def test_totals_of_a_job_from_before_they_were_kept_go_on_from_its_metrics() -> None:
    old = row(metrics={"sync/rounds": 7.0})
    record = Event(sequence=0, kind="metrics", time_s=0.0, data={"sync/rounds": 9.0})
    assert projected(old, [record], 0.0)["totals"] == {"sync/rounds": 9.0}

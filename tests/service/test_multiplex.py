"""One stream of many jobs and studies: filters, no gap and no double across restarts, slow readers, and its end."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from raysync.events import Event
from service.client import Client
from service.client.stream import Message, SseReader
from service.streams.position import Position, read_position
from tests.service.conftest import SPEC, tokens_for, until
from tests.service.still_runtime import StillRuntime
from tests.service.test_client import Server
from tests.service.test_studies import STUDY


class Place:
    """A real server, and somebody who listens."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.runtime = folder, StillRuntime()
        self.server = Server(folder, self.runtime)
        self.tokens = tokens_for(self.server.store)
        self.client = Client(self.server.url, self.tokens["admin"])
        self.listeners: list[Listener] = []

    def restart(self) -> None:
        """End the service, and start it again at the same address."""
        self.server.stop()
        self.server = Server(self.folder, self.runtime, self.server.port)

    def job(self, **labels: str) -> str:
        """Return the id of a job that runs."""
        id = self.client.submit({**SPEC, "labels": labels}).id
        until(lambda: id in self.runtime.alive)
        self.runtime.enter(id, "RUNNING")
        until(lambda: self.client.job(id).state.value == "RUNNING")
        return id

    def close(self) -> None:
        """End everything."""
        for listener in self.listeners:
            listener.is_closing = True
        self.client.close()
        self.server.stop()
        for listener in self.listeners:
            listener.thread.join(30)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.close()


class Listener:
    """Reads a stream in a thread."""

    def __init__(self, place: Place, role: str = "viewer", **wanted: Any) -> None:
        self.messages: list[Message] = []
        self.is_over = self.is_closing = False
        self._wanted, self._url, self._token = wanted, place.server.url, place.tokens[role]
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        place.listeners.append(self)

    def _run(self) -> None:
        with contextlib.suppress(InterruptedError), Client(self._url, self._token) as client:
            for message in client.follow_all(**self._wanted, on_contact=self._check, patience_s=60):
                self.messages.append(message)
            self.is_over = True

    def _check(self, is_there: bool) -> None:
        if self.is_closing:
            raise InterruptedError

    def all(self, kind: str) -> list[Any]:
        """Return what came in messages of a kind, in order."""
        return [item for message in [*self.messages] if message.kind == kind for item in message.data]

    def sequences(self, job: str) -> list[int]:
        """Return the numbers of a job's events."""
        return [event["sequence"] for event in self.all("events") if event["job"] == job]


def tell_many(place: Place, id: str, count: int, kind: str = "metrics") -> int:
    """Let a job tell things; return the number of its last event, once the books have it."""
    for n in range(count):
        place.runtime.tell(id, kind, {"train/loss": 1.0}, step=n)
    last = len(place.runtime.folders[id].records) - 1
    until(lambda: place.client.job(id).last_sequence >= last)
    return place.client.job(id).last_sequence


def test_all_jobs_are_told_from_now_on_and_new_ones_from_their_start(place: Place) -> None:
    gone, old = place.job(), place.job()
    place.runtime.enter(gone, "SUCCEEDED")
    place.client.wait(gone, 20)
    before = tell_many(place, old, 5)
    heard = Listener(place)
    until(lambda: [job["id"] for job in heard.all("jobs")] == [old])
    last = tell_many(place, old, 700)
    new = place.job(team="vision")
    new_last = tell_many(place, new, 10)
    until(lambda: heard.sequences(old)[-1:] == [last] and heard.sequences(new)[-1:] == [new_last])
    assert heard.sequences(old) == list(range(before + 1, last + 1)), "no gap, no double"
    assert heard.sequences(new) == list(range(new_last + 1))
    event = heard.all("events")[0]
    assert event == place.client.events(old, before, 1).items[0].model_dump(mode="json")
    listed = json.loads(place.client.jobs(ids=new).items[0].model_dump_json())
    until(lambda: [job for job in heard.all("jobs") if job["id"] == new][-1] == listed)
    place.runtime.enter(new, "SUCCEEDED")
    until(lambda: [job for job in heard.all("jobs") if job["id"] == new][-1]["state"] == "SUCCEEDED")
    place.client.remove(new)
    until(lambda: heard.all("removed") == [new])
    tell_many(place, old, 5)
    until(lambda: heard.sequences(old)[-1] == last + 5)
    assert heard.all("removed") == [new], "it is told once"
    told = [
        kind for kind, data in heard.messages for job in data if (kind == "jobs" and job["id"] == new) or job == new
    ]
    assert told[-1] == "removed", "and does not come back"
    assert not heard.is_over, "there is no end where nothing is named"
    place.restart()
    tell_many(place, old, 5)
    until(lambda: heard.sequences(old)[-1] == last + 10, 40)
    assert heard.sequences(old) == list(range(before + 1, last + 11))
    assert heard.sequences(gone) == [], "what had ended before is not told, also after a restart"


def test_filters_by_job_label_and_kind(place: Place) -> None:
    one, other = place.job(team="vision", run="1"), place.job(team="text")
    named = Listener(place, jobs=[one], kinds=["knobs"], after=-1, summaries=False)
    labelled = Listener(place, labels=["team:vision", "run"], kinds="metrics,decision")
    silent = Listener(place, kinds="none")
    until(lambda: bool(labelled.all("jobs") and silent.all("jobs")))
    for id in (one, other):
        tell_many(place, id, 3)
        tell_many(place, id, 3, "decision")
        place.client.turn(id, delta=0.7)
    until(lambda: len(named.all("events")) == 1 and len(labelled.all("events")) == 6)
    time.sleep(0.3)
    assert {(event["job"], event["kind"]) for event in named.all("events")} == {(one, "knobs")}
    assert [event["job"] for event in labelled.all("events")] == 6 * [one]
    assert {job["id"] for job in labelled.all("jobs")} == {one}
    assert {message.kind for message in named.messages} == {"events"}
    assert {message.kind for message in silent.messages} == {"jobs"}
    assert {job["id"] for job in silent.all("jobs")} == {one, other}


def test_a_restart_of_the_service_leaves_no_gap_and_no_double(place: Place) -> None:
    ids = [place.job(), place.job()]
    heard, named = Listener(place), Listener(place, jobs=ids, after=-1)
    until(lambda: len(heard.all("jobs")) >= 2)
    first = [place.client.job(id).last_sequence for id in ids]
    for id in ids:
        tell_many(place, id, 300)
    place.restart()
    late = place.job()
    last = [tell_many(place, id, 300) for id in (*ids, late)]
    place.runtime.enter(ids[0], "SUCCEEDED")
    place.client.wait(ids[0], 20)
    ended = place.client.job(ids[0]).last_sequence
    until(lambda: heard.sequences(ids[0])[-1:] == [ended] and heard.sequences(late)[-1:] == [last[2]], 40)
    until(lambda: heard.sequences(ids[1])[-1:] == [last[1]] == named.sequences(ids[1])[-1:], 40)
    assert heard.sequences(ids[0]) == list(range(first[0] + 1, ended + 1))
    assert heard.sequences(ids[1]) == list(range(first[1] + 1, last[1] + 1))
    assert heard.sequences(late) == list(range(last[2] + 1)), "it came while nobody listened"
    assert named.sequences(ids[1]) == list(range(last[1] + 1))
    place.runtime.enter(ids[1], "STOPPED")
    until(lambda: named.is_over, 40)
    assert named.sequences(ids[0]) == list(range(ended + 1))


def _raw(place: Place, path: str, headers: dict[str, str] | None = None) -> tuple[int, str, list[tuple[str, Any]]]:
    """Read a stream to its end; return status, last id, and events."""
    bearer = {"Authorization": f"Bearer {place.tokens['viewer']}"}
    reader, found = SseReader(), list[tuple[str, Any]]()
    with httpx.stream("GET", place.server.url + path, headers={**bearer, **(headers or {})}, timeout=20) as answer:
        for line in answer.iter_lines():
            if (event := reader.feed(line)) is not None:
                found.append((event[0], json.loads("".join(event[1]) if event[0] != "lines" else "[]")))
    return answer.status_code, reader.last_id, found


def test_after_its_end_a_stream_answers_204(place: Place) -> None:
    id = place.job()
    tell_many(place, id, 20)
    place.runtime.enter(id, "SUCCEEDED")
    place.client.wait(id, 20)
    for path in (
        f"/api/v1/stream?jobs={id}&after=-1",
        f"/api/v1/jobs/{id}/events/stream",
        f"/api/v1/jobs/{id}/metrics/stream",
        f"/api/v1/jobs/{id}/logs/stream",
    ):
        status, last_id, found = _raw(place, path)
        assert (status, found[-1][0]) == (200, "end"), path
        assert _raw(place, path, {"Last-Event-ID": last_id}) == (204, "", []), path
        assert _raw(place, path)[0] == 200, "whoever has not had its end gets it"
    assert [*place.client.follow(id, place.client.job(id).last_sequence)] == []


def test_a_position_is_read_as_it_was_written_and_nothing_else_is() -> None:
    position = Position(1230.5, 1234.5, {"a-1": 7, "b-2": -1}, {"s-3": 4})
    assert read_position(position.text()) == position
    for wrong in ("", "x", "!!!", "AAAA", Position(1.0, 1.0, {"../x": 1}).text(), Position(1.0, 1.0, {"a": -5}).text()):
        with pytest.raises(ValueError, match="no position"):
            read_position(wrong)


def test_a_wrong_question_is_answered_before_the_stream_begins(place: Place) -> None:
    bearer = {"Authorization": f"Bearer {place.tokens['viewer']}"}
    for query, status in (
        ("jobs=no-such-job", 404),
        ("studies=no-such-study", 404),
        ("kinds=rumours", 422),
        ("after=3", 422),
        ("what=3", 422),
    ):
        assert httpx.get(f"{place.server.url}/api/v1/stream?{query}", headers=bearer).status_code == status
    wrong = httpx.get(f"{place.server.url}/api/v1/stream", headers={**bearer, "Last-Event-ID": "17"})
    assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (422, "header.Last-Event-ID")
    assert httpx.head(f"{place.server.url}/api/v1/stream", headers=bearer).status_code == 200


def test_who_does_not_read_holds_up_nobody_and_misses_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.streams.hub._KEPT_EVENTS", 50)
    id = place.job()
    first = place.client.job(id).last_sequence
    slow = socket.create_connection(("127.0.0.1", place.server.port), timeout=20)
    slow.sendall(
        f"GET /api/v1/stream?jobs={id} HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: Bearer {place.tokens['viewer']}\r\n\r\n".encode()
    )
    heard = Listener(place)
    until(lambda: bool(heard.all("jobs")))
    records = [
        Event(sequence=n, kind="metrics", time_s=0.1, step=n, data={"x": n, "padding": "y" * 4000})
        for n in range(first + 1, first + 5_001)
    ]
    for start in range(0, len(records), 1000):
        place.server.store.events.append(id, records[start : start + 1000], {})
    last = place.client.job(id).last_sequence
    assert last == first + 5_000
    until(lambda: heard.sequences(id)[-1:] == [last], 60)
    assert heard.sequences(id) == list(range(first + 1, last + 1))
    data = bytearray()
    while f'"sequence":{last},'.encode() not in data[-1_000_000:]:
        data += slow.recv(1 << 20)
    found = [int(number) for number in re.findall(r'"sequence":([0-9]+),"kind"', _unchunked(bytes(data)))]
    assert found == list(range(first + 1, last + 1))
    slow.close()


def _unchunked(answer: bytes) -> str:
    """Return the body of an answer in chunks, as far as it has come."""
    rest, body = answer.partition(b"\r\n\r\n")[2], bytearray()
    while b"\r\n" in rest:
        size, _, rest = rest.partition(b"\r\n")
        body += rest[: int(size, 16)]
        rest = rest[int(size, 16) + 2 :]
    return body.decode(errors="replace")


def test_a_stream_ends_with_its_token(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.security.quota.CHECK_S", 0.1)
    id = place.job()
    token = place.tokens["viewer"]
    with httpx.stream(
        "GET", f"{place.server.url}/api/v1/stream", headers={"Authorization": f"Bearer {token}"}, timeout=20
    ) as answer:
        lines = answer.iter_lines()
        assert "retry: 1000" in [*itertools.islice(lines, 2)]
        place.server.store.tokens.revoke(token.split("_")[1], time.time())
        until(lambda: token.split("_")[1] in place.server.parts.streams._invalid, 30)
        tell_many(place, id, 1)
        assert all('"kind":"metrics"' not in line for line in lines), "it ends, and says nothing more"


def test_studies_and_their_trials_are_told(place: Place) -> None:
    heard = Listener(place)
    study = place.client.submit_study({**STUDY, "name": "slow"})
    until(lambda: any(found["study"] == study.id for found in heard.all("trials")))
    named = Listener(place, studies=[study.id])
    until(lambda: bool(named.all("trials")))
    place.client.stop_study(study.id)
    until(lambda: named.is_over, 30)
    assert named.all("studies")[-1]["state"] == place.client.study(study.id).state == "STOPPED"
    told = {found["trial"]["number"]: found["trial"] for found in named.all("trials")}
    assert told == {trial.number: trial.model_dump(mode="json") for trial in place.client.trials(study.id)}
    assert {job["labels"]["study"] for job in heard.all("jobs")} == {study.id}


def test_a_hub_without_readers_rests(place: Place) -> None:
    hub = place.server.parts.multiplex.hub
    id = place.job()
    assert (hub.readers, hub._task) == (0, None)
    stream = place.client.follow_all(jobs=id)
    assert next(iter(stream)).kind == "jobs"
    assert hub.readers == 1
    _closed(stream)
    until(lambda: hub.readers == 0 and hub._task is None, 40)
    assert hub.jobs == {}


def _closed(stream: Any) -> None:
    close: Callable[[], None] = stream.close
    close()

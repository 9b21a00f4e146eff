"""A viewer cannot stall who steers: streams and logs have threads of their own, and end with their token.

The whole load, 200 streams on 100,000 events, is `python -m tests.bench.stalling`.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raysync.events import Event
from raysync.ports import LogPage
from service.client import ApiError, Client
from tests.service.conftest import tokens_for, until
from tests.service.still_runtime import StillRuntime
from tests.service.test_client import JOB, Server, started

SLOW_S = 2.0
"""What a look into slow books takes: those of all readers together, many seconds."""
AT_ONCE_S = 2.0
"""What a turn may take on a machine that is busy with other things; one that waited for readers would take longer."""


class World:
    """A real server, somebody who steers one job, and one who reads another that has told much."""

    def __init__(self, folder: Path, num_events: int) -> None:
        self.runtime = StillRuntime()
        self.server = Server(folder, self.runtime)
        self.tokens = tokens_for(self.server.store)
        self.client = Client(self.server.url, self.tokens["admin"])
        self.steered, self.told = started(self.client, self.runtime), self.client.submit(JOB).id
        until(lambda: self.told in self.runtime.alive)
        self.runtime.enter(self.told, "SUCCEEDED")
        self.client.wait(self.told, 20)
        records = [Event(sequence=n, kind="metrics", time_s=0.1, step=n, data={"x": n}) for n in range(1, num_events)]
        self.server.store.events.append(self.told, records, {})
        self.connections: list[socket.socket] = []

    def open(self, path: str, role: str = "viewer") -> socket.socket:
        """Ask for something without reading the answer."""
        connection = socket.create_connection(("127.0.0.1", self.server.port), timeout=20)
        token = self.tokens[role]
        connection.sendall(
            f"GET /api/v1/{path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
        )
        self.connections.append(connection)
        return connection

    def close(self) -> None:
        """End everything."""
        for connection in self.connections:
            connection.close()
        self.client.close()
        self.server.stop()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path, 3000)
    yield world
    world.close()


def test_knobs_turn_at_once_while_many_streams_and_pages_are_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = world.server.store.events
    after, sampled = events.after, events.sampled

    def slow(work: Any) -> Any:
        def run(*arguments: Any) -> Any:
            time.sleep(SLOW_S)
            return work(*arguments)

        return run

    monkeypatch.setattr(events, "after", slow(after))
    monkeypatch.setattr(events, "sampled", slow(sampled))
    for n in range(80):
        world.open(f"jobs/{world.told}/events/stream?after={n}")
        world.open(f"jobs/{world.told}/metrics?points=50" if n % 2 else f"jobs/{world.told}/events?limit=100")
    time.sleep(0.3)
    taken = []
    for n in range(20):
        started_s = time.monotonic()
        world.client.turn(world.steered, delta=0.1 + 0.01 * n)
        taken.append(time.monotonic() - started_s)
    assert sorted(taken)[-2] < AT_ONCE_S, taken


def test_knobs_turn_at_once_while_charts_are_read_and_all_jobs_are_streamed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    series, read = world.server.store.series, world.server.store.series.read

    def slow(*arguments: Any, **options: Any) -> Any:
        time.sleep(SLOW_S)
        return read(*arguments, **options)

    monkeypatch.setattr(series, "read", slow)
    for n in range(150):  # more than seven seconds of reading
        world.open(f"metrics/series?jobs={world.told},{world.steered}&names=x,sync/delta")
        if n < 50:
            world.open(f"stream?jobs={world.told},{world.steered}&after=-1")
    time.sleep(0.3)
    taken = []
    for n in range(20):
        started_s = time.monotonic()
        world.client.turn(world.steered, delta=0.1 + 0.01 * n)
        taken.append(time.monotonic() - started_s)
    assert max(taken) < AT_ONCE_S, taken


def test_many_who_catch_up_read_the_books_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    events = world.server.store.events
    after, looks = events.after, list[int]()

    def counted(job: str, sequence: int, *arguments: Any) -> Any:
        if job == world.told:
            looks.append(sequence)
        return after(job, sequence, *arguments)

    monkeypatch.setattr(events, "after", counted)
    for connection in [world.open(f"jobs/{world.told}/events/stream") for _ in range(20)]:
        data = bytearray()
        while b"event: end" not in data[-400:]:
            data += connection.recv(1 << 20)
        numbers = [int(line[4:]) for line in data.decode().splitlines() if line.startswith("id: ")]
        assert numbers[:-1] == list(range(3000))
    assert len(looks) < 20 * len({*looks}) / 4, "pages are shared"


def test_one_look_into_a_log_serves_all_its_readers(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, asked = [f"2026-01-01T00:00:00 worker/0 | line {n}" for n in range(10)], list[int | None]()

    async def log(path: str, offset: int | None, tail_lines: int) -> LogPage:
        asked.append(offset)
        start = offset or 0
        return LogPage(lines[start : start + 4], min(len(lines), start + 4))

    monkeypatch.setattr(world.runtime, "log", log)
    readers = [world.open(f"jobs/{world.steered}/logs/stream") for _ in range(30)]
    found = [bytearray() for _ in readers]
    for data, reader in zip(found, readers, strict=True):
        while b"line 9" not in data:
            data += reader.recv(65536)
    assert len(asked) < 30, "thirty readers are one"
    before, started_s = len(asked), time.monotonic()
    time.sleep(1.6)
    assert len(asked) - before <= 2 * (time.monotonic() - started_s) + 2, (
        "whoever reads, it is looked for twice a second"
    )
    lines.append("2026-01-01T00:00:00 worker/0 | the last")
    for data, reader in zip(found, readers, strict=True):
        while b"the last" not in data:
            data += reader.recv(65536)
        assert data.count(b"worker/0 |") == 11, "every line once"
    late = world.open(f"jobs/{world.steered}/logs/stream")
    data = bytearray()
    while b"the last" not in data:
        data += late.recv(65536)
    assert data.count(b"worker/0 |") == 11


def test_a_revoked_token_loses_its_streams(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = {"security.quota.CHECK_S": 0.2, "jobs.feed.HEARTBEAT_S": 0.5, "jobs.log_feed.HEARTBEAT_S": 0.5}
    for name, bound_s in bounds.items():
        monkeypatch.setattr(f"service.{name}", bound_s)
    time.sleep(3.1)  # the check that waits already
    streams = [world.open(f"jobs/{world.steered}/{what}/stream") for what in ("events", "metrics", "logs")]
    others = [world.open(f"jobs/{world.steered}/{what}/stream", "operator") for what in ("events", "logs")]
    for stream in (*streams, *others):
        assert b"200 OK" in stream.recv(65536)
    world.server.store.tokens.revoke(world.tokens["viewer"].split("_")[1], time.time())
    started_s = time.monotonic()
    for stream in streams:
        data = b""
        while not data.endswith(b"0\r\n\r\n"):  # the end of a chunked answer
            piece = stream.recv(65536)
            assert piece, "it ends in good order"
            data += piece
    assert time.monotonic() - started_s < 5
    for stream in others:
        stream.settimeout(0.8)
        with contextlib.suppress(TimeoutError):
            while piece := stream.recv(65536):
                assert not piece.endswith(b"0\r\n\r\n"), "another token's goes on"
    with Client(world.server.url, world.tokens["viewer"]) as viewer, pytest.raises(ApiError) as caught:
        next(iter(viewer.follow(world.steered)))
    assert caught.value.status == 401


def test_a_stream_of_metrics_pings_though_the_job_tells_other_things(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.jobs.feed.HEARTBEAT_S", 0.5)
    stream = world.open(f"jobs/{world.steered}/metrics/stream")
    data, ends_s = b"", time.monotonic() + 3.0
    stream.settimeout(0.1)
    while time.monotonic() < ends_s:
        world.runtime.tell(world.steered, "decision", {"action": "local"}, step=1)
        with contextlib.suppress(TimeoutError):
            data += stream.recv(65536)
    assert data.count(b": ping") >= 2

"""The Python clients over real HTTP, a service that comes and goes, and readers that do not keep up."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import uvicorn
from typer.testing import CliRunner

from raysync.errors import SpecError
from raysync.spec import parse_spec
from service.cli import app
from service.client import ApiError, AsyncClient, Client, Unreachable
from service.client.requests import Requests
from service.client.stream import SseReader
from service.http.deps import Parts
from service.server.serve import server_config
from service.server.wiring import assemble
from service.store import Store
from tests.service.conftest import SPEC, TALKS, settings_for, tokens_for, until
from tests.service.still_runtime import StillRuntime

JOB = parse_spec(SPEC)


class Server:
    """A real server in a thread."""

    def __init__(self, folder: Path, runtime: StillRuntime, port: int = 0, **settings_changes: Any) -> None:
        settings = settings_for(folder, **settings_changes)
        self.store = Store(settings.database_url)
        self.store.database.migrate()
        self.parts: Parts = assemble(settings, self.store, runtime, TALKS)
        self.socket = socket.create_server(("127.0.0.1", port))
        self.port = self.socket.getsockname()[1]
        config = server_config(self.parts)
        config.timeout_graceful_shutdown = 1
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self.socket],), daemon=True)
        self._thread.start()
        until(lambda: self._server.started)

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        """End it; open streams break off."""
        self._server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive()
        self.socket.close()
        self.store.close()


@pytest.fixture
def runtime() -> StillRuntime:
    return StillRuntime()


@pytest.fixture
def server(tmp_path: Path, runtime: StillRuntime) -> Iterator[Server]:
    server = Server(tmp_path, runtime)
    yield server
    server.stop()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url, tokens_for(server.store)["admin"]) as client:
        yield client


def started(client: Client, runtime: StillRuntime) -> str:
    id = client.submit(JOB).id
    until(lambda: id in runtime.alive)
    runtime.enter(id, "RUNNING")
    until(lambda: client.job(id).state.value == "RUNNING")
    return id


def test_every_method_of_the_client(client: Client, runtime: StillRuntime) -> None:
    id = started(client, runtime)
    assert [job.id for job in client.jobs(state="RUNNING").items] == [id]
    assert client.turn(id, delta=0.5).version == 1
    assert client.turn(id, dry_run=True, delta=0.7).values["delta"] == 0.7
    assert client.turn(id, delta=float("inf")).values["delta"] == "Infinity"
    assert client.knobs(id).version == 2
    with pytest.raises(ApiError, match="no such knob") as caught:
        client.turn(id, dleta=1.0)
    assert (caught.value.status, caught.value.type) == (422, "urn:raysync:invalid-knob")
    assert caught.value.errors[0][0] == "values.dleta"
    with pytest.raises(ApiError, match="version 2"):
        client.turn(id, expected_version=0, delta=1.0)
    assert client.scale(id, 3).id == client.pause(id).id == client.resume(id).id == client.take_checkpoint(id).id
    assert [checkpoint.name for checkpoint in client.checkpoints(id)] == ["checkpoint_000000"]
    assert "worker/0 | one" in client.log(id)
    assert client.components().families["codecs"]
    runtime.tell(id, "metrics", {"train/loss": 1.0}, step=1)
    until(lambda: len(client.metrics(id).items) == 1)
    assert client.events(id, kind="state").items[0].kind == "state"
    client.stop(id, "enough")
    with pytest.raises(TimeoutError):
        client.wait(id, timeout_s=0.1)
    runtime.enter(id, "STOPPED", "enough")
    assert client.wait(id, timeout_s=10).reason == "enough"
    assert list(client.follow_log(id)) == ["2026-01-01T00:00:00 worker/0 | one", "2026-01-01T00:00:00 worker/1 | two"]
    client.remove(id)
    with pytest.raises(ApiError, match="there is no job"):
        client.job(id)


def test_the_asynchronous_client_does_the_same(server: Server, runtime: StillRuntime) -> None:
    token = tokens_for(server.store)["admin"]

    async def use() -> list[int]:
        async with AsyncClient(server.url, token) as client:
            id = (await client.submit(JOB)).id
            while id not in runtime.alive:
                await asyncio.sleep(0.01)
            runtime.enter(id, "RUNNING")
            assert (await client.turn(id, delta=0.5)).version == 1
            assert (await client.knobs(id)).version == 1
            for call in (client.pause(id), client.resume(id), client.scale(id, 3), client.stop(id)):
                assert (await call).id == id
            await client.take_checkpoint(id)
            assert len(await client.checkpoints(id)) == 1
            assert (await client.jobs()).items[0].id == id
            assert (await client.components()).knobs
            runtime.enter(id, "SUCCEEDED")
            numbers = [event.sequence async for event in client.follow(id)]
            assert (await client.wait(id, 10)).state.value == "SUCCEEDED"
            assert "one" in await client.log(id)
            assert (await client.events(id)).items
            assert (await client.metrics(id)).items == []
            await client.remove(id)
            return numbers

    numbers = asyncio.run(use())
    assert numbers == list(range(len(numbers)))


def test_a_stream_is_live_and_survives_a_restart_without_gap_or_double(tmp_path: Path, runtime: StillRuntime) -> None:
    first = Server(tmp_path, runtime)
    token = tokens_for(first.store)["admin"]
    client = Client(first.url, token)
    id = started(client, runtime)
    collected: list[int] = []

    def collect() -> None:
        for event in client.follow(id):
            collected.append(event.sequence)

    live = threading.Thread(target=collect, daemon=True)
    live.start()
    for step in range(50):
        runtime.tell(id, "metrics", {"train/loss": 1.0}, step=step)
    until(lambda: len(collected) >= 51)
    first.stop()
    for step in range(50, 100):
        runtime.tell(id, "metrics", {"train/loss": 1.0}, step=step)
    second = Server(tmp_path, runtime, port=first.port)
    for step in range(100, 150):
        runtime.tell(id, "metrics", {"train/loss": 1.0}, step=step)
    runtime.enter(id, "SUCCEEDED")
    live.join(30)
    assert collected == list(range(len(runtime.folders[id].records)))
    client.close()
    second.stop()


def test_a_slow_reader_slows_nobody_and_gets_everything(server: Server, client: Client, runtime: StillRuntime) -> None:
    id = started(client, runtime)
    text = "x" * 2000
    with contextlib.closing(socket.create_connection(("127.0.0.1", server.port))) as slow:
        token = tokens_for(server.store)["viewer"]
        request = (
            f"GET /api/v1/jobs/{id}/events/stream HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
        )
        slow.sendall(request.encode())
        assert b"200 OK" in slow.recv(200)
        for step in range(8000):  # 16 MB: more than sockets hold
            runtime.tell(id, "metrics", {"train/loss": 1.0, "note": text}, step=step)
        started_s = time.monotonic()
        until(lambda: client.job(id).step == 7999, 30)
        runtime.enter(id, "SUCCEEDED")
        until(lambda: client.job(id).is_terminal)
        took_s = time.monotonic() - started_s
        slow.settimeout(30)
        data = bytearray()
        while b"event: end" not in data[-600:]:
            piece = slow.recv(1 << 20)
            assert piece, "it ends with an end"
            data += piece
    numbers = [int(line[4:]) for line in data.decode(errors="replace").splitlines() if line.startswith("id: ")]
    assert numbers[:-1] == list(range(8002))
    assert took_s < 30


def test_no_service_is_said_plainly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unreachable, match="raysync serve"), Client("http://127.0.0.1:1", "x", tries=2) as client:
        client.jobs()
    monkeypatch.setenv("RAYSYNC_DATA", str(tmp_path))
    with pytest.raises(Unreachable, match="RAYSYNC_URL"):
        Client()
    (tmp_path / "client.json").write_text(json.dumps({"url": "http://127.0.0.1:9", "token": "t"}))
    assert Client().place == ("http://127.0.0.1:9", "t")
    monkeypatch.setenv("RAYSYNC_URL", "http://elsewhere:1/")
    assert Client().place.url == "http://elsewhere:1"


def test_calls_are_repeated_while_ray_is_away(client: Client, runtime: StillRuntime) -> None:
    id = started(client, runtime)
    cluster, runtime.cluster = runtime.cluster, None
    threading.Timer(0.5, lambda: setattr(runtime, "cluster", cluster)).start()
    assert client.checkpoints(id) == []


def test_a_removal_whose_answer_was_lost_is_done_by_the_second_try(server: Server, runtime: StillRuntime) -> None:
    class Lossy(httpx.HTTPTransport):
        lost = 0

        def handle_request(self, request: httpx.Request) -> httpx.Response:
            response = super().handle_request(request)
            if request.method == "DELETE" and not self.lost:
                self.lost += 1
                raise httpx.ReadError("the answer was lost")
            return response

    transport = Lossy()
    with Client(server.url, tokens_for(server.store)["admin"], transport=transport) as client:
        id = started(client, runtime)
        runtime.enter(id, "SUCCEEDED")
        client.wait(id, timeout_s=10)
        client.remove(id)
        assert transport.lost == 1
        with pytest.raises(ApiError, match="there is no job"):
            client.remove(id)  # not repeated: it was gone before


def test_one_token_holds_only_so_many_streams(tmp_path: Path, runtime: StillRuntime) -> None:
    server = Server(tmp_path, runtime, max_streams_per_token=2)
    tokens = tokens_for(server.store)
    with Client(server.url, tokens["admin"]) as client, Client(server.url, tokens["viewer"]) as other:
        id = started(client, runtime)
        streams = [client.follow(id), client.follow(id)]
        for stream in streams:
            assert next(stream).sequence == 0
        for refused in (client.follow(id), client.follow(id, metrics_only=True), client.follow_log(id)):
            with pytest.raises(ApiError, match="2 streams open") as caught:
                next(iter(refused))
            assert (caught.value.status, caught.value.type) == (429, "urn:raysync:too-many-streams")
        assert next(other.follow(id)).sequence == 0
        del stream, streams[0]

        def reads_again() -> bool:
            with contextlib.suppress(ApiError):
                return next(client.follow(id)).sequence == 0
            return False

        until(reads_again)
    server.stop()


def test_server_sent_events_out_of_lines() -> None:
    reader = SseReader()
    lines = ["retry: 1000", "", ": ping", "", "id: 7", "event: metrics", "data: {", "data:}", "", "data: x", ""]
    events = [event for line in lines if (event := reader.feed(line)) is not None]
    assert events == [("metrics", ["{", "}"]), ("message", ["x"])]
    assert reader.last_id == "7"


def test_a_job_may_be_a_plain_dict_and_an_address_may_come_without_http(server: Server, runtime: StillRuntime) -> None:
    token = tokens_for(server.store)["admin"]
    with Client(f"127.0.0.1:{server.port}", token) as client:
        assert client.submit(dict(SPEC)).name == JOB.name
        with pytest.raises(SpecError, match="did you mean 'delta'"):
            client.submit({**SPEC, "strategy": {"kind": "selsync", "dleta": 1.0}})


def test_the_catalogue_needs_no_service(tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["components", "strategies"], env={"RAYSYNC_DATA": str(tmp_path)})
    assert found.exit_code == 0
    assert "selsync" in found.output
    assert "delta [auto], aggregate [parameters]" in found.output


def test_both_clients_tell_how_their_methods_are_called() -> None:
    declared = {name for name in vars(Requests) if not name.startswith("_")}
    assert {"submit", "turn", "follow"} <= declared
    for kind in (Client, AsyncClient):
        assert str(inspect.signature(kind.job)) == "(self, id: 'str') -> 'JobPublic'"
        assert str(inspect.signature(kind.follow)).endswith("-> 'Iterator[EventPublic]'")
        assert all(inspect.isfunction(getattr(kind, name)) and getattr(kind, name).__doc__ for name in declared)

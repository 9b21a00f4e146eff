"""What must reach nobody: credentials in addresses, values in SQL errors, a token on its way to a proxy."""

from __future__ import annotations

import http.server
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.exc import SQLAlchemyError

from raysync.errors import StorageError
from raysync.ports import LogPage
from service import logs
from service.client import AsyncClient, Client
from service.client.transport import find_service
from service.security.auth import Role, create_token
from service.security.redaction import redacted
from service.server.app import create_app
from service.server.wiring import assemble
from service.settings import Settings
from service.store import Store
from service.store.tokens import TokenRow
from tests.service.conftest import World, tokens_for, until
from tests.service.still_runtime import StillRuntime
from tests.service.test_client import Server
from tests.service.test_store import books, postgres

__all__ = ["books", "postgres"]

URI = "s3://AKIAKEY:hunter2@bucket/jobs"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://key:secret@bucket/x", "s3://[hidden]@bucket/x"),
        ("s3://key:se@cret@bucket/x", "s3://[hidden]@bucket/x"),
        ("postgresql://me:pw@host:5432/db is down", "postgresql://[hidden]@host:5432/db is down"),
        ("gs://bucket/x?access_token=abc&z=1", "gs://bucket/x?access_token=[hidden]&z=1"),
        ("abfs://c/x?sig=abc%2F&SharedAccessKey=q", "abfs://c/x?sig=[hidden]&SharedAccessKey=[hidden]"),
        ('{"a": "s3://k:s@b/x", "b": "me@home"}', '{"a": "s3://[hidden]@b/x", "b": "me@home"}'),
        ("file:///a@b and https://host/a@b", "file:///a@b and https://host/a@b"),
        ("token rs_0123abcd_" + "x" * 30, "token rs_[hidden]"),
    ],
)
def test_credentials_in_text_are_hidden(text: str, shown: str) -> None:
    assert redacted(text) == shown


@pytest.fixture
def world(tmp_path: Path, store: Store) -> Iterator[World]:
    """A service whose storage needs a password."""
    settings = Settings(data=tmp_path / "data", storage=URI, allow_hosts=("testserver",))
    runtime = StillRuntime()
    with TestClient(create_app(assemble(settings, store, runtime)), raise_server_exceptions=False) as http:
        yield World(http, http.app.state.parts, runtime, tokens_for(store))  # type: ignore[attr-defined]


def test_credentials_of_the_storage_reach_nobody(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    first = world.finished()
    task = {"kind": "digits"}
    id = world.running(spec={"task": task}, resume_from=first)
    assert world.runtime.launches[-1].storage == URI, "the runtime needs them"
    assert world.parts.store.jobs.get(id).resume_from == f"{URI}/{first}"
    world.runtime.tell(id, "checkpoint", {"path": f"{URI}/{id}/checkpoint_000000"})
    world.call("POST", f"/api/v1/jobs/{id}/checkpoints")

    async def log(path: str, offset: int | None, tail_lines: int) -> LogPage:
        lines = [f"2026-01-01T00:00:00 worker/0 | cannot write {URI}/{id}"]
        return LogPage(lines if not offset else [], 1)

    async def broken(path: str) -> None:
        raise StorageError(path, f"no such bucket {path}")

    monkeypatch.setattr(world.runtime, "log", log)
    answers = [world.call("GET", f"/api/v1/jobs/{id}/checkpoints", role="viewer")]
    assert answers[0].json()
    monkeypatch.setattr(world.runtime, "checkpoints", broken)
    world.runtime.enter(id, "FAILED", f"cannot write {URI}/{id}")
    until(lambda: world.job(id)["is_terminal"])
    pages = ("", "/events", "/events/stream", "/logs", "/logs/stream", "/checkpoints")
    answers += [world.call("GET", f"/api/v1/jobs/{id}{page}", role="viewer") for page in pages]
    answers += [world.call("GET", "/api/v1/jobs", role="viewer"), world.call("GET", "/metrics", role="viewer")]
    for answer in answers:
        assert "hunter2" not in answer.text, answer.url
        assert "AKIAKEY" not in answer.text, answer.url
    shown = world.job(id)
    assert shown["path"] == f"s3://[hidden]@bucket/jobs/{id}"
    assert shown["resume_from"] == f"s3://[hidden]@bucket/jobs/{first}"
    assert answers[-2].json()["items"][0]["reason"].endswith(f"@bucket/jobs/{id}")
    formatted = "\n".join(logs.JsonLines().format(record) + logs.Plain().format(record) for record in caplog.records)
    assert "cannot write" in formatted
    assert "hunter2" not in formatted


def test_an_sql_error_does_not_tell_what_it_was_about(books: Store) -> None:
    token = create_token(books.tokens, "anna", Role.ADMIN)
    found = books.tokens.find(token.split("_")[1])
    assert found is not None
    twice = TokenRow(id=found.id, name="a secret name", role="admin", digest=found.digest, created_s=1.0)
    unnamed = TokenRow(id="other", name=None, role="a secret name", digest=found.digest, created_s=1.0)  # type: ignore[arg-type]
    for row in (twice, unnamed):
        with pytest.raises(SQLAlchemyError) as caught:
            books.tokens.add(row)
        record = logging.LogRecord("x", logging.ERROR, "", 0, "failed", (), (caught.type, caught.value, None))
        for text in (logs.JsonLines().format(record), logs.Plain().format(record)):
            assert "failed" in text
            assert found.digest not in text
            assert "a secret name" not in text


class Proxy(http.server.BaseHTTPRequestHandler):
    """Takes whatever is sent to it."""

    heard: list[str] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self.heard.append(str(self.headers))
        self.send_response(502)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


def test_a_token_for_this_machine_goes_to_no_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Proxy.heard.clear()
    proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    server = Server(tmp_path, StillRuntime())
    token = tokens_for(server.store)["viewer"]
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.server_port}")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    for url in (server.url, f"localhost:{server.port}", f"http://localhost:{server.port}"):
        with Client(url, token, tries=1) as client:
            assert client.jobs().items == []

    async def listed() -> int:
        async with AsyncClient(server.url, token, tries=1) as client:
            return len((await client.jobs()).items)

    import asyncio

    assert asyncio.run(listed()) == 0
    assert Proxy.heard == []
    proxy.shutdown()
    proxy.server_close()
    server.stop()


@pytest.mark.parametrize(
    ("given", "scheme"),
    [
        ("127.0.0.1:8420", "http"),
        ("127.9.9.9", "http"),
        ("localhost:8420", "http"),
        ("LOCALHOST", "http"),
        ("[::1]:8420", "http"),
        ("localhost.evil.example:8420", "https"),
        ("localhost.evil.example", "https"),
        ("127.evil.example", "https"),
        ("127.0.0.1.evil.example", "https"),
        ("localhosts", "https"),
        ("localhost@evil.example", "https"),
        ("[::1].evil.example", "https"),
    ],
)
def test_only_this_machine_is_spoken_to_in_clear_text(given: str, scheme: str) -> None:
    assert find_service(given, "token").url == f"{scheme}://{given}"

"""Hosts, origins, sizes, headers, and what a log or an error must not tell."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from service import logs
from service.errors import UnsafeBinding
from service.server.serve import check_binding
from service.settings import Settings
from service.store import Store
from tests.service.conftest import SPEC, World, settings_for, tokens_for


def test_other_hosts_are_refused(world: World) -> None:
    for host in ("evil.example", "evil.example:8420", "", "[::1", "testserver.evil.example"):
        answer = world.call("GET", "/api/v1/jobs", headers={"Host": host})
        assert (answer.status_code, answer.json()["type"]) == (403, "urn:raysync:forbidden"), host
    for host in ("localhost:8420", "127.0.0.1:1", "[::1]:8420", "testserver"):
        assert world.call("GET", "/api/v1/jobs", headers={"Host": host}).status_code == 200
    assert world.call("GET", "/healthz", role=None, headers={"Host": "10.1.2.3"}).status_code == 200, "for probes"


def test_pages_of_other_sites_cannot_act(world: World) -> None:
    id = world.running()
    for method, path in (("POST", f"/api/v1/jobs/{id}/pause"), ("DELETE", f"/api/v1/jobs/{id}")):
        answer = world.call(method, path, headers={"Origin": "https://evil.example"})
        assert answer.status_code == 403
        assert "evil.example" in answer.json()["detail"]
    own = {"Host": "localhost:8420"}
    refused = ("null", "http://", "http://testserver@localhost:8420", "http://localhost:8420@evil.example", "http://[")
    refused += ("https://localhost:8420", "http://localhost", "http://localhost:8421", "http://127.0.0.1:8420")
    refused += ("http://localhost.evil.example:8420", "http://localhost:8420/x", "localhost:8420")
    for origin in refused:  # another scheme, port or name is another site, though it be on this machine
        answer = world.call("POST", f"/api/v1/jobs/{id}/resume", headers={**own, "Origin": origin})
        assert answer.status_code == 403, origin
    for host, origin in (("localhost:8420", "http://localhost:8420"), ("testserver", "http://TESTSERVER:80")):
        answer = world.call("POST", f"/api/v1/jobs/{id}/resume", headers={"Host": host, "Origin": origin})
        assert answer.status_code == 202, origin
    assert (
        world.call("POST", f"/api/v1/jobs/{id}/pause", headers={"Host": "x@localhost", "Origin": "null"}).status_code
        == 403
    )
    answer = world.call(
        "OPTIONS", "/api/v1/jobs", headers={"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    )
    assert not [name for name in answer.headers if name.startswith("access-control")], "CORS is closed"


def test_large_bodies_are_refused_with_and_without_a_length(world: World) -> None:
    big = b"x" * (world.parts.settings.max_body_bytes + 1)
    headers = {"Content-Type": "application/json"}
    assert world.call("POST", "/api/v1/jobs", content=big, headers=headers).status_code == 413
    pieces = (big[:100_000] for _ in range(20))
    assert world.call("POST", "/api/v1/jobs", content=pieces, headers=headers).status_code == 413
    deep = b'{"spec":' + b"[" * 50_000 + b"]" * 50_000 + b"}"
    assert world.call("POST", "/api/v1/jobs", content=deep, headers=headers).status_code == 422


def test_every_answer_is_dressed(world: World) -> None:
    for path, role in (("/healthz", None), ("/api/v1/jobs", "viewer"), ("/nowhere", None), ("/api/v1/jobs", None)):
        headers = world.call("GET", path, role=role).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["cache-control"] == "no-store"
        assert headers["x-request-id"]
    assert world.call("GET", "/healthz", headers={"X-Request-Id": "mine-1"}).headers["x-request-id"] == "mine-1"
    assert world.call("GET", "/healthz", headers={"X-Request-Id": "a b\tc"}).headers["x-request-id"] != "a b\tc"


def test_what_nobody_foresaw_is_told_without_its_inside(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise RuntimeError("secret inside")

    monkeypatch.setattr(world.parts.store.jobs, "page", broken)
    answer = world.call("GET", "/api/v1/jobs")
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text
    assert answer.json()["request_id"]


def test_no_token_reaches_log_event_or_error(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secrets = list(world.tokens.values())
    id = world.running()
    texts = [
        world.call("GET", "/api/v1/jobs/nix").text,
        world.call("POST", "/api/v1/jobs", json={"spec": SPEC, "package": world.tokens["admin"]}).text,
        world.call("GET", f"/api/v1/jobs/{id}/events").text,
        world.call("GET", "/api/v1/jobs", headers={"Authorization": f"Bearer {secrets[0]}x"}).text,
    ]
    records = "\n".join(logs.JsonLines().format(record) for record in caplog.records)
    assert "GET /api/v1/jobs/nix" in records
    for secret in secrets:
        assert all(secret not in text for text in [*texts[:1], *texts[2:], records])
    record = logging.LogRecord("x", logging.INFO, "", 0, "token %s", (secrets[0],), None)
    assert secrets[0] not in logs.JsonLines().format(record) + logs.Plain().format(record), "should one get there"


def test_others_may_come_in_only_once_there_are_tokens(tmp_path: Path) -> None:
    open_to_all = settings_for(tmp_path, host="0.0.0.0")
    with pytest.raises(UnsafeBinding, match="raysync token create"):
        check_binding(open_to_all)
    store = Store(open_to_all.database_url)
    tokens_for(store)
    store.close()
    check_binding(open_to_all)
    check_binding(settings_for(tmp_path / "fresh"))
    with pytest.raises(UnsafeBinding, match="both"):
        check_binding(Settings(data=tmp_path, tls_cert=tmp_path / "cert.pem"))

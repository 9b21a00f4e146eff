"""What somebody without a token can take: bytes, time and connections are bounded, and what is refused is counted."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.client import Client
from service.server.connections import Bounds, Connections, admit, within_descriptors
from tests.service.conftest import tokens_for, until
from tests.service.still_runtime import StillRuntime
from tests.service.test_client import Server

MIB = 1 << 20
SHORT = Bounds(header_s=1.0, body_s=1.0, body_bytes_per_s=1e6, stalled_s=1.0)


@pytest.fixture
def header_s() -> float:
    """How long a request's headers may take; a test that opens hundreds of connections first asks for more."""
    return SHORT.header_s


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header_s: float) -> Iterator[Server]:
    """A real server whose bounds in time are a test's."""
    short = SHORT._replace(header_s=header_s)
    monkeypatch.setattr("service.server.serve.Bounds", lambda **given: short._replace(**given))
    server = Server(tmp_path, StillRuntime(), max_connections_per_address=400)
    yield server
    server.stop()


def opened(server: Server, data: bytes) -> socket.socket:
    """Return a connection over which something was sent."""
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    connection.sendall(data)
    return connection


def answered(connection: socket.socket) -> bytes:
    """Return all that comes until the other side ends it; b"" also if it just went away."""
    found = bytearray()
    with contextlib.suppress(ConnectionError):
        while piece := connection.recv(65536):
            found += piece
    connection.close()
    return bytes(found)


def trickle(connection: socket.socket, data: bytes) -> None:
    """Send something byte by byte."""
    for n in range(len(data)):
        connection.sendall(data[n : n + 1])
        time.sleep(0.1)


def refused(server: Server, why: str) -> float:
    text = server.parts.metrics.render().decode()
    lines = [line for line in text.splitlines() if line.startswith(f'raysync_connections_refused_total{{why="{why}"')]
    return float(lines[0].split()[-1]) if lines else 0.0


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_one_endless_header_is_refused_and_not_kept(server: Server) -> None:
    before = resident_bytes()
    connection = opened(server, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Long: ")
    sent = 0
    with contextlib.suppress(ConnectionError):
        while sent < 64 * MIB:
            connection.sendall(b"x" * MIB)
            sent += MIB
    answer = answered(connection)
    assert b"200 OK" not in answer
    assert sent < 64 * MIB, "it is not read to its end"
    assert resident_bytes() - before < 16 * MIB
    assert refused(server, "header_bytes") == 1


@pytest.mark.parametrize(
    "head",
    [
        b"X: " + b"x" * 70_000 + b"\r\n",
        b"".join(b"X-%d: %s\r\n" % (n, b"y" * 90) for n in range(800)),
    ],
    ids=["one long", "many short"],
)
def test_long_headers_in_one_piece_get_a_431(server: Server, head: bytes) -> None:
    answer = answered(opened(server, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n"))
    assert answer.startswith(b"HTTP/1.1 431 ")
    answer = answered(opened(server, b"GET /healthz?" + b"q" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"))
    assert answer.startswith(b"HTTP/1.1 431 ")
    kept = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 60_000 + b"\r\nConnection: close\r\n\r\n"
    assert answered(opened(server, kept)).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("header_s", [5.0])
def test_half_sent_requests_end_and_their_descriptors_come_back(server: Server) -> None:
    before = descriptors()
    halves = [b"", b"GET", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n", b"\r\n"]
    waiting = [opened(server, halves[n % 4]) for n in range(300)]
    until(lambda: descriptors() >= before + 600)
    with Client(server.url, tokens_for(server.store)["viewer"]) as client:
        started_s = time.monotonic()
        assert client.jobs().items == []
        assert time.monotonic() - started_s < 3, "others are served meanwhile"
        answers = [answered(connection) for connection in waiting]
        assert time.monotonic() - started_s < 15
        assert all(answer.startswith(b"HTTP/1.1 408 ") for answer in answers)
    until(lambda: descriptors() <= before + 2)
    assert refused(server, "header_time") == 300


def test_a_request_that_trickles_in_is_not_waited_for(server: Server) -> None:
    """Bytes that come now and then must not move the bound; between requests empty lines must not either."""
    for pieces in (b"GET /healthz HTTP/1.1\r\nX-Slow: " + b"s" * 50, b"\r\n" * 40):
        connection = opened(server, pieces[:1])
        started_s = time.monotonic()
        with pytest.raises(ConnectionError):
            trickle(connection, pieces[1:])
        assert time.monotonic() - started_s < 3
        connection.close()


def test_slow_bodies_are_bounded_and_steady_ones_are_not(server: Server) -> None:
    token = tokens_for(server.store)["operator"]
    head = (
        f"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
        "Content-Type: application/json\r\n"
    ).encode()
    slow = [opened(server, head + b"Content-Length: 1000\r\n\r\n{") for _ in range(20)]
    slow += [opened(server, head + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n") for _ in range(20)]
    started_s = time.monotonic()
    assert all(answered(connection).startswith(b"HTTP/1.1 408 ") for connection in slow)
    assert time.monotonic() - started_s < 8
    assert refused(server, "body_time") == 40
    # Without a token the answer is there at once; what is still to come of the body is not waited for.
    rude = opened(server, b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n{")
    assert b"401 Unauthorized" in answered(rude)
    steady = opened(server, head + b"Content-Length: 900000\r\nConnection: close\r\n\r\n")
    for _ in range(18):
        steady.sendall(b" " * 50_000)
        time.sleep(0.1)
    assert answered(steady).startswith(b"HTTP/1.1 400 "), "1.8 s, though a body that stands still has 1 s"


@pytest.mark.parametrize("header_s", [60.0])
def test_one_address_cannot_take_all_connections(server: Server) -> None:
    with contextlib.ExitStack() as waiting:
        for _ in range(400):
            waiting.enter_context(opened(server, b"GET"))
        answer = answered(opened(server, b""))
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert refused(server, "too_many_of_address") >= 1
        neighbour = socket.create_connection(("127.0.0.1", server.port), 5, ("127.0.0.2", 0))
        waiting.enter_context(neighbour)
        neighbour.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert neighbour.recv(100).startswith(b"HTTP/1.1 200 ")
    until(
        lambda: answered(opened(server, b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n")).startswith(
            b"HTTP/1.1 200"
        )
    )


def test_an_answer_nobody_takes_is_given_up(server: Server) -> None:
    token = tokens_for(server.store)["viewer"]
    request = f"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    deaf = opened(server, request * 200)
    until(lambda: refused(server, "stalled") == 1, 15)
    deaf.close()


def test_admission_is_by_address_and_in_all() -> None:
    bounds = Bounds(per_address=2, in_all=3)
    assert admit(bounds, 1, 2, is_proxy=False) is None
    assert admit(bounds, 2, 2, is_proxy=False) == "too_many_of_address"
    assert admit(bounds, 2, 2, is_proxy=True) is None, "a proxy speaks for many"
    assert admit(bounds, 0, 3, is_proxy=True) == "too_many"
    connections = Connections(bounds, ["10.0.0.9"], lambda why: None)
    assert [connections.enter("a") for _ in range(3)] == [None, None, "too_many_of_address"]
    assert [connections.enter("10.0.0.9"), connections.enter("b")] == [None, "too_many"]
    connections.leave("a")
    assert (len(connections), connections.enter("b")) == (2, None)


def test_bounds_leave_descriptors_for_the_rest() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))
        found = within_descriptors(Bounds(in_all=10**6, per_address=10**6))
        now = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        assert now >= min(hard, 65536), "it has asked for what it may have"
        assert found.in_all <= now - 256
        assert found.per_address <= found.in_all // 2
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("is_trusted", [False, True])
def test_an_address_is_believed_of_a_trusted_proxy_only(tmp_path: Path, is_trusted: bool) -> None:
    """Whoever could name another address with each wrong token would never have to wait."""
    server = Server(tmp_path, StillRuntime(), trusted_proxies=("127.0.0.1",) if is_trusted else ())
    statuses = []
    for n in range(12):
        request = f"GET /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer rs_00000000_{n}\r\n"
        answer = answered(opened(server, f"{request}X-Forwarded-For: 10.0.0.{n}\r\nConnection: close\r\n\r\n".encode()))
        statuses.append(int(answer.split()[1]))
    assert statuses == ([401] * 12 if is_trusted else [401] * 10 + [429] * 2)
    server.stop()

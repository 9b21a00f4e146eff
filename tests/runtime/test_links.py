"""One suite for both links, and for the direct link's control lane: order, parts, back-pressure, dead peers. And what
only the direct link has: its key.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

import actors.link.direct
import actors.link.frames
from actors.errors import PeerLost, UnknownPeer
from actors.link.base import Contact, Endpoint
from actors.link.direct import DirectLink
from actors.link.frames import PART_BYTES, Assembler, to_frames
from actors.link.ray import RayLink
from raysync.address import COORDINATOR, Address, shard, worker
from raysync.engine import messages as m
from raysync.errors import PayloadError

KINDS = ("direct", "ray")
LINES = (*KINDS, "lane")
"""The last: the direct link between a coordinator and others of its machine."""
KEY = b"k" * 32
A, B, C, S = worker(0), worker(1), shard(0), COORDINATOR
TIMEOUT_S = 3.0


def push(round: int, payload: bytes) -> m.Push:
    return m.Push(
        view=1,
        sender=worker(0),
        block=0,
        round=round,
        participants=(worker(0),),
        payload=payload,
        payload_kind="displacement",
        weight=1.0,
        lr=0.1,
    )


def payload(round: int, size: int) -> bytes:
    return round.to_bytes(4, "little") * (size // 4)


@ray.remote(num_cpus=0, concurrency_groups={"link": 1})
class Peer:
    """An actor that has a link and does with it what a test says."""

    def __init__(self, name: Address, kind: str) -> None:
        self.ray_link = RayLink(name, TIMEOUT_S)
        self.link: Any = self.ray_link if kind == "ray" else DirectLink(name, KEY, "127.0.0.1", TIMEOUT_S)
        self.received: list[m.Message] = []

    @ray.method(concurrency_group="link")
    def deliver(self, head: bytes, body: Any) -> None:
        self.ray_link.deliver(head, body)

    def pid(self) -> int:
        return os.getpid()

    def ping(self) -> None:
        pass

    def endpoint(self) -> Endpoint | None:
        return getattr(self.link, "endpoint", None)

    def connect(self, book: dict[str, Contact]) -> None:
        self.link.connect(book)

    def probe(self, peers: list[str]) -> list[str]:
        return self.link.probe(peers, 1.0)

    def send(self, to: str, sizes: list[int], flush_s: float = 60.0) -> float:
        """Send messages numbered from 0; return how long that took."""
        started_s = time.monotonic()
        for round, size in enumerate(sizes):
            self.link.send(to, push(round, payload(round, size)))
        self.link.flush(flush_s)
        return time.monotonic() - started_s

    def exchange(self, to: Address, sizes: list[int]) -> list[tuple[int, int, bool]]:
        """Send everything before reading anything on purpose."""
        self.send(to, sizes, 0.0)
        found = self.receive(len(sizes))
        assert self.link.flush(30.0), "who has read all it was sent may still have something to send"
        return found

    def offer_for(self, to: Address, duration_s: float) -> None:
        """Send small messages and look for answers for a while."""
        deadline_s = time.monotonic() + duration_s
        while time.monotonic() < deadline_s:
            for round in range(50):
                self.link.send(to, push(round, b""))
            self.link.receive(0.2)

    def receive(self, count: int, timeout_s: float = 30.0) -> list[tuple[int, int, bool]]:
        """Return (round, size, whether the content is right) of `count` messages, as they came."""
        deadline_s, found = time.monotonic() + timeout_s, []
        while len(found) < count and time.monotonic() < deadline_s:
            for envelope in self.link.receive(0.1):
                message = envelope.message
                right = bytes(message.payload) == payload(message.round, len(message.payload))
                found.append((message.round, len(message.payload), right))
        return found

    def close(self) -> None:
        self.link.close()


@pytest.fixture(params=LINES)
def pair(request: pytest.FixtureRequest, local_ray: None) -> Iterator[tuple[Any, Any]]:
    own_name = {A: S, B: S} if request.param == "lane" else {A: A, B: B}
    peers = {name: Peer.remote(own_name[name], request.param) for name in (A, B)}
    book = {name: Contact(peer, ray.get(peer.endpoint.remote())) for name, peer in peers.items()}
    ray.get([peer.connect.remote(book) for peer in peers.values()])
    yield peers[A], peers[B]
    for peer in peers.values():
        ray.kill(peer)


def test_messages_arrive_in_order_and_whole(pair: tuple[Any, Any]) -> None:
    a, b = pair
    sizes = [0, 4, 4096, 4100, 400, PART_BYTES, PART_BYTES + 4, 7 * PART_BYTES // 2, 8] * 20
    sent = a.send.remote(B, sizes)
    assert ray.get(b.receive.remote(len(sizes))) == [(round, size, True) for round, size in enumerate(sizes)]
    ray.get(sent)


def test_a_sender_waits_for_a_slow_reader_and_is_released(pair: tuple[Any, Any]) -> None:
    a, b = pair
    sizes = [PART_BYTES] * 400
    sent = a.send.remote(B, sizes)
    done, _ = ray.wait([sent], timeout=1.0)
    assert not done, "400 MB went to a peer that reads nothing"
    assert ray.get(b.receive.remote(len(sizes))) == [(round, size, True) for round, size in enumerate(sizes)]
    ray.get(sent)


def test_two_that_send_before_they_read_do_not_block_each_other(pair: tuple[Any, Any]) -> None:
    a, b = pair
    sizes = [PART_BYTES] * 120
    found = ray.get([a.exchange.remote(B, sizes), b.exchange.remote(A, sizes)], timeout=60)
    assert found == [[(round, size, True) for round, size in enumerate(sizes)]] * 2


def test_a_peer_that_never_reads_is_lost_within_the_bound(pair: tuple[Any, Any]) -> None:
    a, _ = pair
    started_s = time.monotonic()
    with pytest.raises(PeerLost, match="worker/1 took nothing"):
        ray.get(a.send.remote(B, [PART_BYTES] * 1000))
    assert time.monotonic() - started_s < TIMEOUT_S + 10


def test_a_dead_peer_is_lost_within_the_bound(pair: tuple[Any, Any]) -> None:
    a, b = pair
    ray.get(a.send.remote(B, [8]))
    os.kill(ray.get(b.pid.remote()), 9)
    started_s = time.monotonic()
    with pytest.raises(PeerLost):
        ray.get(a.offer_for.remote(B, 12.0))
    assert time.monotonic() - started_s < TIMEOUT_S + 10
    assert ray.get(a.probe.remote([B])) == [B]


def test_probe_finds_a_live_peer_and_strangers_are_named(pair: tuple[Any, Any]) -> None:
    a, _ = pair
    assert ray.get(a.probe.remote([B])) == []
    with pytest.raises(UnknownPeer, match="shard/0 has not been introduced"):
        ray.get(a.send.remote(C, [8]))


# Lanes


def test_a_peer_that_takes_nothing_holds_up_no_other(links: list[DirectLink]) -> None:
    """A stage's pushes go to shards, its activations to neighbours, its reports to the coordinator: each a line of its
    own, so that a bulk of bytes on one delays nothing on the others.
    """
    stage, busy_shard, neighbour = (DirectLink(name, KEY, "127.0.0.1", 30.0) for name in (A, C, B))
    links += [stage, busy_shard, neighbour]
    for name, other in ((C, busy_shard), (B, neighbour)):
        stage.connect({name: Contact(None, Endpoint(other.endpoint.tcp, "/nowhere"))})
    assert stage.probe([B, C], 5.0) == []
    stage.send(C, push(1, bytes(48 << 20)))
    assert stage._peers[C].outbox, "the shard reads none of it, and the line is full"
    started_s, arrived = time.monotonic(), []
    stage.send(B, push(2, bytes(1 << 20)))
    while not arrived and time.monotonic() < started_s + 5:
        stage.receive(0.0)
        arrived = neighbour.receive(0.05)
    assert [envelope.message.round for envelope in arrived] == [2]
    assert time.monotonic() - started_s < 1.0
    assert stage._peers[C].outbox


# The direct link's key


@pytest.fixture
def links() -> Iterator[list[DirectLink]]:
    made: list[DirectLink] = []
    yield made
    for link in made:
        link.close()


@pytest.mark.parametrize("way", ["tcp", "ipc", "lane"])
@pytest.mark.parametrize("is_right", [True, False])
def test_only_the_jobs_key_opens_the_line(way: str, is_right: bool, links: list[DirectLink]) -> None:
    name = S if way == "lane" else C
    server = DirectLink(name, KEY, "127.0.0.1", 0.5)
    client = DirectLink(A, KEY if is_right else b"x" * 32, "127.0.0.1", 0.5)
    links += [server, client]
    endpoint = Endpoint(server.endpoint.tcp, "/nowhere") if way == "tcp" else server.endpoint
    client.connect({name: Contact(None, endpoint)})
    assert client._lane.carries(name) == (way == "lane")
    client.send(name, push(1, b"x" * 8))
    deadline_s, arrived, lost = time.monotonic() + 3, [], False
    while time.monotonic() < deadline_s and not arrived and not lost:
        arrived = server.receive(0.05)
        try:
            client.receive(0.05)
        except PeerLost:
            lost = True
    assert (bool(arrived), lost) == (is_right, not is_right)


def test_what_crosses_tcp_cannot_be_read_on_the_way(links: list[DirectLink]) -> None:
    """CURVE encrypts: the secret word never shows up in what a tap on the line sees."""
    import socket
    import threading

    server, client = DirectLink(S, KEY, "127.0.0.1"), DirectLink(A, KEY, "127.0.0.1")
    links += [server, client]
    tap = socket.create_server(("127.0.0.1", 0))
    seen = bytearray()

    def relay(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError), source:
            while data := source.recv(65536):
                seen.extend(data)
                target.sendall(data)

    def serve() -> None:
        near, _ = tap.accept()
        host, port = server.endpoint.tcp.removeprefix("tcp://").split(":")
        far = socket.create_connection((host, int(port)))
        back = threading.Thread(target=relay, args=(far, near))
        back.start()
        relay(near, far)
        far.close()
        back.join()

    listener = threading.Thread(target=serve, daemon=True)
    listener.start()
    client.connect({S: Contact(None, Endpoint(f"tcp://127.0.0.1:{tap.getsockname()[1]}", "/nowhere"))})
    word = b"a very secret word of this test!" * 1000
    client.send(S, push(1, word))
    arrived = []
    deadline_s = time.monotonic() + 5
    while not arrived and time.monotonic() < deadline_s:
        client.receive(0.02)
        arrived = server.receive(0.02)
    assert bytes(arrived[0].message.payload) == word
    assert len(seen) > len(word)
    assert b"secret word" not in seen
    client.close()
    links.remove(client)
    listener.join(10)
    tap.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_link_that_is_closed_may_still_be_woken(kind: str) -> None:
    """Whoever halts a core that is just ending does so: an error would have its actor killed before it has cleared up."""
    link: Any = DirectLink(A, KEY, "127.0.0.1") if kind == "direct" else RayLink(A)
    link.close()
    link.wake()


# Hostile bytes


def test_nothing_is_unpickled() -> None:
    for module in (actors.link.direct, actors.link.frames):
        assert not re.search(r"pickle|recv_pyobj|marshal|eval\(", Path(str(module.__file__)).read_text())
    ran = []

    class Bomb:
        def __reduce__(self) -> Any:
            return ran.append, (1,)

    with pytest.raises(PayloadError, match="not a message"):
        Assembler().feed(pickle.dumps(Bomb()), b"")
    assert not ran


def test_frames_no_sender_of_ours_writes_are_refused() -> None:
    frames = list(to_frames(S, A, push(1, b"x" * (3 * PART_BYTES))))
    for hostile in (
        [(b"\x93", b"")],
        [(b"", b"part of nothing")],
        [(frames[1].head, frames[1].body)],
        [(frames[0].head, b"x" * (3 * PART_BYTES + 1))],
        [(frames[0].head, frames[0].body), (frames[1].head, b"x" * (3 * PART_BYTES))],
    ):
        *accepted, last = hostile
        assembler = Assembler()
        for head, body in accepted:
            assembler.feed(head, body)
        with pytest.raises(PayloadError):
            assembler.feed(*last)


def test_what_ray_carries_is_sealed_and_damage_is_noticed() -> None:
    for size in (400, 3 * PART_BYTES // 2):
        frames = [*to_frames(A, B, push(1, payload(1, size)), is_sealed=True)]
        assembler = Assembler()
        arrived = [assembler.feed(frame.head, frame.body) for frame in frames]
        assert bytes(arrived[-1].message.payload) == payload(1, size)  # type: ignore[union-attr]
        for damaged in range(len(frames)):
            body, assembler = bytearray(frames[damaged].body), Assembler()
            body[-1] ^= 1
            for frame in frames[:damaged]:
                assembler.feed(frame.head, frame.body)
            with pytest.raises(PayloadError, match="damaged on the way"):
                assembler.feed(frames[damaged].head, memoryview(body))


def test_parts_of_two_lines_from_one_process_are_kept_apart() -> None:
    lines = [list(to_frames(S, to, push(1, fill * (2 * PART_BYTES)))) for to, fill in ((A, b"x"), (B, b"y"))]
    assembler = Assembler()
    found = [assembler.feed(*frame) for frames in zip(*lines, strict=True) for frame in frames]
    whole = [(e.to, bytes(e.message.payload[:1]), len(set(e.message.payload))) for e in found if e is not None]
    assert whole == [(A, b"x", 1), (B, b"y", 1)]


def test_a_new_message_from_a_restarted_peer_replaces_half_an_old_one() -> None:
    assembler = Assembler()
    old, new = (list(to_frames(S, A, push(*what))) for what in ((1, b"x" * (3 * PART_BYTES)), (2, b"y" * 8)))
    assert assembler.feed(*old[0]) is None
    envelope = assembler.feed(*new[0])
    assert envelope is not None
    assert envelope.message.round == 2

"""`direct`: ZeroMQ sockets between the actors, Ray only tells where they are.

Every actor listens twice: on TCP, where CURVE encrypts and both ends prove that they hold the job's key, and on a
socket in the file system, which peers on the same machine prefer: there the key is a password and nothing is
encrypted, since nothing leaves the machine. Both refuse whoever does not know the key. On one machine a coordinator and
those it decides for have a lane of their own (`lane`).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import socket
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils import z85

from actors.errors import PeerLost, UnknownPeer
from actors.link.base import Contact, Endpoint, Envelope
from actors.link.frames import Assembler, Frame, to_frames
from actors.link.lane import ControlLane
from raysync.address import Address, Role
from raysync.engine.messages import Message

logging.getLogger("zmq.auth").setLevel(logging.WARNING)  # below that it logs the password

TIMEOUT_S = 20.0
"""A peer that takes nothing for so long is lost."""
_HEARTBEAT_MS = 5_000
_FOLDER = "raysync-"
_QUEUED_FRAMES = 16
"""Frames ZeroMQ holds per peer and direction; the rest waits in the outbox."""
_OUTBOX_BYTES = 64 << 20
_SOCKET_BYTES = 4 << 20
_COPY_BELOW_BYTES = 65536
_LANE = "control"


def sweep(endpoint: Endpoint) -> None:
    """Remove what a link whose process was killed has left on this machine."""
    folder = Path(endpoint.ipc).parent
    if folder.name.startswith(_FOLDER):
        shutil.rmtree(folder, ignore_errors=True)


class _Keys:
    """What the job's key stands for on both kinds of socket."""

    def __init__(self, key: bytes) -> None:
        self.server_secret, self.client_secret = _curve_secret(key, b"server"), _curve_secret(key, b"client")
        self.server_public, self.client_public = map(zmq.curve_public, (self.server_secret, self.client_secret))
        self.password = hashlib.blake2b(key, person=b"password").hexdigest()


class _Peer:
    """One peer's socket, what waits for it, and since when it has taken nothing."""

    def __init__(self, contact: Contact, socket: zmq.Socket[bytes], is_near: bool) -> None:
        self.contact, self.socket, self.is_near = contact, socket, is_near
        self.outbox: deque[Frame] = deque()
        self.outbox_bytes = 0
        self.stuck_since_s: float | None = None


class DirectLink:
    """ZeroMQ PUSH to every peer's PULL."""

    kind = "direct"

    def __init__(self, name: Address, key: bytes, ip: str, timeout_s: float = TIMEOUT_S) -> None:
        self.name, self._keys, self._timeout_s = name, _Keys(key), timeout_s
        self._context = zmq.Context()
        self._guard = ThreadAuthenticator(self._context)
        self._guard.start()
        self._guard.configure_curve_callback(domain="tcp", credentials_provider=self)
        self._guard.configure_plain(domain="ipc", passwords={"raysync": self._keys.password})
        self._folder = Path(tempfile.mkdtemp(prefix=_FOLDER))  # mode 0700
        self._inboxes = [self._listen_tcp(ip), self._listen_ipc()]
        self._lane = ControlLane(name, key, self._folder / _LANE)
        self._assembler = Assembler()
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._poller = zmq.Poller()
        for inbox in (*self._inboxes, self._woken, self._lane):
            self._poller.register(inbox, zmq.POLLIN)
        self._inbox_of = {int(inbox.fileno()): inbox for inbox in self._inboxes}
        self._unread: set[int] = set(self._inbox_of)
        """By file descriptor, inboxes that may hold more than their descriptor tells of."""
        for fd in (*self._inbox_of, self._woken.fileno()):
            self._lane.watch(fd)
        self._peers: dict[Address, _Peer] = {}
        self._arrived: list[Envelope] = []
        self.network_bytes = 0
        """What this link has sent to other machines, without what TCP and encryption add."""

    def callback(self, domain: str, key: bytes) -> bool:
        """Tell the guard whether a TCP peer's key is the job's."""
        return key == self._keys.client_public

    # The port

    def connect(self, book: Mapping[Address, Contact]) -> None:
        """Learn where peers are."""
        for name, contact in book.items():
            known = self._peers.get(name)
            if contact.endpoint is None or (known is not None and known.contact.endpoint == contact.endpoint):
                continue
            self.forget([name])
            is_near = _host(contact.endpoint.tcp) == _host(self._tcp) and os.path.exists(contact.endpoint.ipc)
            self._peers[name] = _Peer(contact, self._dial(contact.endpoint, is_near), is_near)
            lane = Path(contact.endpoint.ipc).with_name(_LANE)
            if is_near and Role.COORDINATOR in (name.role, self.name.role) and lane.exists():
                self._lane.connect(name, lane)

    def forget(self, names: Iterable[Address]) -> None:
        """Close the lines to peers that will not come back."""
        for name in names:
            if name in self._peers:
                self._peers.pop(name).socket.close(linger=0)
            self._lane.forget(name)

    def send(self, to: Address, message: Message) -> None:
        """Send now, or as soon as the peer takes it."""
        if self._lane.carries(to):
            self._lane.send(to, message)
            while self._lane.waiting_bytes(to) > _OUTBOX_BYTES:
                self._turn(0.1)
                self._raise_lost()
            return
        peer = self._peer(to)
        for frame in to_frames(self.name, to, message):
            peer.outbox.append(frame)
            peer.outbox_bytes += len(frame.head) + len(frame.body)
        self._flush(peer)
        while peer.outbox_bytes > _OUTBOX_BYTES:
            self._turn(0.1)
            self._raise_lost()

    def receive(self, timeout_s: float) -> list[Envelope]:
        """Return what has arrived."""
        if not self._arrived:
            self._turn(timeout_s)
        arrived, self._arrived = self._arrived, []
        if not arrived:
            self._raise_lost()
        return arrived

    def probe(self, peers: list[Address], timeout_s: float) -> list[Address]:
        """Return the peers whose handshake does not succeed in time."""
        deadline_s = time.monotonic() + timeout_s
        missing = set(peers)
        while missing and time.monotonic() < deadline_s:
            missing = {peer for peer in missing if not self._peer(peer).socket.poll(20, zmq.POLLOUT)}
        return sorted(missing)

    def wake(self) -> None:
        """Let `receive` return; a link that is being closed has nothing to be woken for."""
        with contextlib.suppress(OSError):
            self._waker.send(b"x")

    def flush(self, timeout_s: float) -> bool:
        """Hand over what waits in the outboxes; return whether all of it left."""
        deadline_s = time.monotonic() + timeout_s
        while self._is_holding and time.monotonic() < deadline_s:
            self._turn(0.02)
        return not self._is_holding

    @property
    def _is_holding(self) -> bool:
        return bool(self._lane.waiting) or any(peer.outbox for peer in self._peers.values())

    def close(self, linger_s: float = 0.0) -> None:
        """Free sockets, threads and the folder."""
        for peer in self._peers.values():
            peer.socket.close(linger=int(1000 * linger_s))
        for inbox in self._inboxes:
            inbox.close(linger=0)
        self._lane.close()
        self._guard.stop()
        self._waker.close()
        self._woken.close()
        self._context.term()
        shutil.rmtree(self._folder, ignore_errors=True)

    # Sockets

    def _listen_tcp(self, ip: str) -> zmq.Socket[bytes]:
        inbox = self._socket(zmq.PULL)
        inbox.curve_server, inbox.zap_domain = True, b"tcp"
        inbox.curve_secretkey, inbox.curve_publickey = self._keys.server_secret, self._keys.server_public
        inbox.ipv6 = ":" in ip
        host = f"[{ip}]" if ":" in ip else ip
        port = inbox.bind_to_random_port(f"tcp://{host}")
        self._tcp = f"tcp://{host}:{port}"
        return inbox

    def _listen_ipc(self) -> zmq.Socket[bytes]:
        inbox = self._socket(zmq.PULL)
        inbox.plain_server, inbox.zap_domain = True, b"ipc"
        inbox.bind(f"ipc://{self._folder}/inbox")
        return inbox

    @property
    def endpoint(self) -> Endpoint:
        """Where this link listens."""
        return Endpoint(self._tcp, str(self._folder / "inbox"))

    def _dial(self, endpoint: Endpoint, is_near: bool) -> zmq.Socket[bytes]:
        line = self._socket(zmq.PUSH)
        line.immediate = True  # frames go only to a peer that has proved itself, and never into nothing
        if is_near:
            line.plain_username, line.plain_password = b"raysync", self._keys.password.encode()
            line.connect(f"ipc://{endpoint.ipc}")
        else:
            line.curve_serverkey = self._keys.server_public
            line.curve_secretkey, line.curve_publickey = self._keys.client_secret, self._keys.client_public
            line.ipv6 = "[" in endpoint.tcp
            line.connect(endpoint.tcp)
        return line

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        made = self._context.socket(kind)
        made.linger = 0
        made.sndhwm = made.rcvhwm = _QUEUED_FRAMES
        made.sndbuf = made.rcvbuf = _SOCKET_BYTES
        made.heartbeat_ivl, made.heartbeat_timeout = _HEARTBEAT_MS, 3 * _HEARTBEAT_MS
        made.reconnect_ivl, made.reconnect_ivl_max = 50, 1000
        return made

    # Moving bytes

    def _turn(self, timeout_s: float) -> None:
        """Wait for anything to move, then move all that can."""
        stuck = [peer for peer in self._peers.values() if peer.outbox]
        if stuck and not self._unread:
            self._await_room(stuck, int(1000 * timeout_s))
        arrived, moved = self._lane.turn(0.0 if stuck or self._unread else timeout_s)
        self._arrived += arrived
        for peer in stuck:
            self._flush(peer)
        if self._woken.fileno() in moved:
            self._woken.recv(4096)
        self._unread |= moved & self._inbox_of.keys()
        for fd in [*self._unread]:
            self._read(self._inbox_of[fd])
            self._unread.discard(fd)  # read until it was empty: its descriptor tells of whatever comes next

    def _await_room(self, stuck: list[_Peer], timeout_ms: int) -> None:
        """Wait until a peer takes something, or anything arrives."""
        for peer in stuck:
            self._poller.register(peer.socket, zmq.POLLOUT)
        try:
            moved = {source for source, _ in self._poller.poll(timeout_ms)}
        finally:
            for peer in stuck:
                self._poller.unregister(peer.socket)
        self._unread |= {fd for fd, inbox in self._inbox_of.items() if inbox in moved}

    def _read(self, inbox: zmq.Socket[bytes]) -> None:
        while True:
            try:
                frames = [inbox.recv(zmq.NOBLOCK, copy=False)]
            except zmq.Again:
                return
            while frames[-1].more:
                frames.append(inbox.recv(copy=False))
            envelope = self._assembler.feed(frames[0].buffer, frames[1].buffer if len(frames) > 1 else b"")
            if envelope is not None:
                self._arrived.append(envelope)

    def _flush(self, peer: _Peer) -> None:
        while peer.outbox:
            frame = peer.outbox[0]
            try:
                self._put(peer.socket, frame)
            except zmq.Again:
                peer.stuck_since_s = peer.stuck_since_s or time.monotonic()
                return
            peer.outbox.popleft()
            size = len(frame.head) + len(frame.body)
            peer.outbox_bytes -= size
            peer.stuck_since_s = None
            self.network_bytes += 0 if peer.is_near else size

    def _put(self, line: zmq.Socket[bytes], frame: Frame) -> None:
        line.send(frame.head, zmq.NOBLOCK | zmq.SNDMORE if frame.body else zmq.NOBLOCK)
        if frame.body:
            line.send(frame.body, zmq.NOBLOCK, copy=len(frame.body) < _COPY_BELOW_BYTES)

    def _peer(self, name: Address) -> _Peer:
        if name not in self._peers:
            raise UnknownPeer(str(name))
        return self._peers[name]

    def _raise_lost(self) -> None:
        now_s = time.monotonic()
        for name, peer in self._peers.items():
            if peer.stuck_since_s is not None and now_s - peer.stuck_since_s > self._timeout_s:
                waited_s = now_s - peer.stuck_since_s
                peer.outbox.clear()
                peer.outbox_bytes, peer.stuck_since_s = 0, None
                raise PeerLost(str(name), waited_s)
        for name in self._lane.waiting:
            waited_s = self._lane.stuck_s(name, now_s)
            if waited_s > self._timeout_s:
                self._lane.drop(name)
                raise PeerLost(str(name), waited_s)


def _host(address: str) -> str:
    return address.rpartition(":")[0]


def _curve_secret(key: bytes, role: bytes) -> bytes:
    return z85.encode(hashlib.blake2b(key, digest_size=32, person=role).digest())

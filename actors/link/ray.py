"""`ray`: the same frames as arguments of actor calls; works wherever Ray works, at some ten times the latency.

Large bodies travel through Ray's object store. Ray itself pickles the call; inside it are only bytes.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError

from actors.errors import PeerLost, UnknownPeer
from actors.link.base import Contact, Envelope
from actors.link.direct import TIMEOUT_S
from actors.link.frames import Assembler, to_frames
from raysync.address import Address
from raysync.engine.messages import Message

_WINDOW = 32
"""Calls on their way to one peer before the next waits."""
_INBOX_BYTES = 32 << 20


class RayLink:
    """Calls `deliver` of the peers' actors; they hand the frames to their own link's `deliver`."""

    kind = "ray"

    def __init__(self, name: Address, timeout_s: float = TIMEOUT_S) -> None:
        self.name, self._timeout_s = name, timeout_s
        self._inbox: deque[tuple[bytes, bytes]] = deque()
        self._inbox_bytes = 0
        self._moved = threading.Condition()
        self._woken = False
        self._assembler = Assembler()
        self._contacts: dict[Address, Contact] = {}
        self._flying: dict[Address, deque[Any]] = {}
        self._arrived: list[Envelope] = []
        self._closed = False

    def deliver(self, head: bytes, body: Any) -> None:
        """Take in a frame; called by the actor's own thread for the link, in order per sender. Blocks while the inbox
        is full, which holds the sender back.
        """
        copied = bytes(body)  # out of the object store, which is small
        with self._moved:
            self._moved.wait_for(lambda: self._inbox_bytes < _INBOX_BYTES or self._closed)
            self._inbox.append((head, copied))
            self._inbox_bytes += len(copied)
            self._moved.notify_all()

    # The port

    def connect(self, book: Mapping[Address, Contact]) -> None:
        """Learn where peers are."""
        self._contacts |= book

    def forget(self, names: Iterable[Address]) -> None:
        """Drop peers that will not come back."""
        for name in names:
            self._contacts.pop(name, None)
            self._flying.pop(name, None)

    def send(self, to: Address, message: Message) -> None:
        """Call the peer; wait while too many calls are on their way."""
        if to not in self._contacts:
            raise UnknownPeer(str(to))
        flying = self._flying.setdefault(to, deque())
        for frame in to_frames(self.name, to, message, is_sealed=True):
            self._make_room(to, flying)
            body = np.frombuffer(frame.body, np.uint8) if len(frame.body) else b""
            flying.append(self._contacts[to].actor.deliver.remote(frame.head, body))

    def receive(self, timeout_s: float) -> list[Envelope]:
        """Return what has arrived."""
        self._drain(0.0 if self._arrived else timeout_s)
        arrived, self._arrived = self._arrived, []
        if not arrived:
            self._raise_lost()
        return arrived

    def probe(self, peers: list[Address], timeout_s: float) -> list[Address]:
        """Return the peers whose actor does not answer in time."""
        calls = {peer: self._contacts[peer].actor.ping.remote() for peer in peers}
        ready, _ = ray.wait(list(calls.values()), num_returns=len(calls), timeout=timeout_s)
        return sorted(peer for peer, call in calls.items() if call not in ready or _failed(call))

    def wake(self) -> None:
        """Let `receive` return."""
        with self._moved:
            self._woken = True
            self._moved.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until the last calls have been taken."""
        deadline_s = time.monotonic() + timeout_s
        while flying := [call for calls in self._flying.values() for call in calls]:
            done, _ = ray.wait(flying, num_returns=len(flying), timeout=0.02)
            for calls in self._flying.values():
                while calls and calls[0] in done:
                    calls.popleft()
            self._drain(0.0)
            if time.monotonic() > deadline_s:
                return False
        return True

    def close(self, linger_s: float = 0.0) -> None:
        """Release whatever waits for this link."""
        with self._moved:
            self._closed = True
            self._moved.notify_all()

    def _make_room(self, to: Address, flying: deque[Any]) -> None:
        started_s = time.monotonic()
        while len(flying) >= _WINDOW:
            done, _ = ray.wait([flying[0]], timeout=0.05)
            if done:
                if _failed(flying.popleft()):
                    flying.clear()
                    raise PeerLost(str(to), time.monotonic() - started_s)
                continue
            self._drain(0.0)
            if time.monotonic() - started_s > self._timeout_s:
                flying.clear()
                raise PeerLost(str(to), time.monotonic() - started_s)

    def _raise_lost(self) -> None:
        for to, flying in self._flying.items():
            while flying and ray.wait([flying[0]], timeout=0)[0]:
                if _failed(flying.popleft()):
                    flying.clear()
                    raise PeerLost(str(to), 0.0)

    def _drain(self, timeout_s: float) -> None:
        """Move frames out of the inbox, waiting up to `timeout_s` for the first."""
        with self._moved:
            if timeout_s > 0:
                self._moved.wait_for(lambda: self._inbox or self._woken, timeout_s)
            frames, self._woken = list(self._inbox), False
            self._inbox.clear()
            self._inbox_bytes = 0
            self._moved.notify_all()
        for head, body in frames:
            envelope = self._assembler.feed(head, body)
            if envelope is not None:
                self._arrived.append(envelope)


def _failed(call: Any) -> bool:
    try:
        ray.get(call)
    except RayError:
        return True
    return False

"""A link held to a rate and a latency: what a core sends leaves when such a line would have carried it, in order.

It wraps either transport. Whatever leaves the process counts, also to peers on the same machine: so one machine shows
what a slow line does. While a core of the process computes nothing leaves: what is due then leaves after the step.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from actors.errors import PeerLost, UnknownPeer
from actors.link.base import Contact, Envelope, Link
from raysync.address import Address
from raysync.engine.messages import Message
from raysync.spec import Transport

_HEAD_BYTES = 96
"""What a message weighs beside its payload, about."""
_BITS_PER_MBIT = 1e6

logger = logging.getLogger(__name__)


class _Held(NamedTuple):
    """A message on its way."""

    to: Address
    message: Message
    bits: float
    said_s: float
    lands_s: float = 0.0
    """When it arrives, once it has gone through the line."""


class LimitedLink:
    """Passes everything on, what is sent no faster than the limit and later by the latency; without both at once."""

    def __init__(self, link: Link, now_s: Callable[[], float] = time.monotonic) -> None:
        self._link, self._now_s = link, now_s
        self.kind = link.kind
        self._limit_mbit: float | None = None
        self._latency_s = 0.0
        self._held: deque[_Held] = deque()
        self._free_s = 0.0
        """When the last message had gone through the line."""
        self._flying: deque[_Held] = deque()

    def limits(self, transport: Transport) -> None:
        """Hold what is sent from now on, and what is held, to what a job allows."""
        self._limit_mbit, self._latency_s = transport.limit_mbit, transport.latency_ms / 1e3

    def send(self, to: Address, message: Message) -> None:
        """Send, or hold the message for as long as the line would take."""
        if self._limit_mbit is None and not self._latency_s and not self._held and not self._flying:
            self._link.send(to, message)
            return
        if any(one.to == to and one.message is message for one in (*self._held, *self._flying)):
            return  # said again, and still on its way
        self._held.append(_Held(to, message, 8.0 * (_HEAD_BYTES + message.payload_bytes), self._now_s()))

    def receive(self, timeout_s: float) -> list[Envelope]:
        """Return what has arrived; meanwhile pass on what is due."""
        if not self._held and not self._flying:
            return self._link.receive(timeout_s)
        self._pass_on()
        return self._link.receive(min(timeout_s, max(0.0, self._next_s - self._now_s())))

    def flush(self, timeout_s: float) -> bool:
        """Hand over what is held and what waits below, for at most so long; return whether all of it left."""
        deadline_s = self._now_s() + timeout_s
        while self._next_s <= deadline_s:
            time.sleep(max(0.0, self._next_s - self._now_s()))
            self._pass_on()
        left = self._held or self._flying
        return self._link.flush(max(0.0, deadline_s - self._now_s())) and not left

    def _pass_on(self) -> None:
        while self._held and self._due_s <= self._now_s():
            self._free_s = self._due_s
            held = self._held.popleft()
            self._flying.append(held._replace(lands_s=self._free_s + self._latency_s))
        while self._flying and self._flying[0].lands_s <= self._now_s():
            flying = self._flying.popleft()
            try:
                self._link.send(flying.to, flying.message)
            except (PeerLost, UnknownPeer) as error:
                logger.warning("not sent: %s", error)  # as at once: a peer that lives asks again

    @property
    def _due_s(self) -> float:
        """When the first message that is held has gone through; at once if the limit has been lifted."""
        first = self._held[0]
        begun_s = max(self._free_s, first.said_s)
        return begun_s if self._limit_mbit is None else begun_s + first.bits / (_BITS_PER_MBIT * self._limit_mbit)

    @property
    def _next_s(self) -> float:
        """When there is something to do."""
        due_s = self._due_s if self._held else math.inf
        return min(due_s, self._flying[0].lands_s) if self._flying else due_s

    def forget(self, names: Iterable[Address]) -> None:
        """Drop peers that will not come back, and what is held for them."""
        gone = {*names}
        self._held = deque(held for held in self._held if held.to not in gone)
        self._flying = deque(flying for flying in self._flying if flying.to not in gone)
        self._link.forget(gone)

    def connect(self, book: Mapping[Address, Contact]) -> None:
        """Learn where peers are."""
        self._link.connect(book)

    def probe(self, peers: list[Address], timeout_s: float) -> list[Address]:
        """Return the peers that cannot be reached within the bound."""
        return self._link.probe(peers, timeout_s)

    def wake(self) -> None:
        """Let `receive` return now."""
        self._link.wake()

    def close(self, linger_s: float = 0.0) -> None:
        """Free sockets and threads."""
        self._link.close(linger_s)

"""A link held to a rate: what a core sends leaves when a line of that rate would have carried it, in order.

It wraps either transport. Whatever leaves the process counts, also to peers on the same machine: so one machine shows
what a slow line does. While a core of the process computes nothing leaves: what is due then leaves after the step.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from actors.errors import PeerLost, UnknownPeer
from actors.link.base import Contact, Envelope, Link
from raysync.address import Address
from raysync.engine.messages import Message

_HEAD_BYTES = 96
"""What a message weighs beside its payload, about."""
_BITS_PER_MBIT = 1e6

logger = logging.getLogger(__name__)


class _Held(NamedTuple):
    """A message on its way through the line."""

    to: Address
    message: Message
    bits: float


class LimitedLink:
    """Passes everything on, what is sent no faster than the limit; without one at once."""

    def __init__(self, link: Link, now_s: Callable[[], float] = time.monotonic) -> None:
        self._link, self._now_s = link, now_s
        self.kind = link.kind
        self.limit_mbit: float | None = None
        self._held: deque[_Held] = deque()
        self._begun_s = 0.0
        """When the line began with the first message that is held."""

    def send(self, to: Address, message: Message) -> None:
        """Send, or hold the message for as long as the line would take."""
        if self.limit_mbit is None and not self._held:
            self._link.send(to, message)
            return
        if any(held.to == to and held.message is message for held in self._held):
            return  # said again, and still on its way
        if not self._held:
            self._begun_s = self._now_s()
        self._held.append(_Held(to, message, 8.0 * (_HEAD_BYTES + message.payload_bytes)))

    def receive(self, timeout_s: float) -> list[Envelope]:
        """Return what has arrived; meanwhile pass on what is due."""
        self._pass_on()
        return self._link.receive(
            timeout_s if not self._held else min(timeout_s, max(0.0, self._due_s - self._now_s()))
        )

    def flush(self, timeout_s: float) -> bool:
        """Hand over what is held and what waits below, for at most so long; return whether all of it left."""
        deadline_s = self._now_s() + timeout_s
        while self._held and self._due_s <= deadline_s:
            time.sleep(max(0.0, self._due_s - self._now_s()))
            self._pass_on()
        return self._link.flush(max(0.0, deadline_s - self._now_s())) and not self._held

    def _pass_on(self) -> None:
        while self._held and self._due_s <= self._now_s():
            self._begun_s = self._due_s
            held = self._held.popleft()
            try:
                self._link.send(held.to, held.message)
            except (PeerLost, UnknownPeer) as error:
                logger.warning("not sent: %s", error)  # as at once: a peer that lives asks again

    @property
    def _due_s(self) -> float:
        """When the first message that is held has gone through; at once if the limit has been lifted."""
        if self.limit_mbit is None:
            return self._begun_s
        return self._begun_s + self._held[0].bits / (_BITS_PER_MBIT * self.limit_mbit)

    def forget(self, names: Iterable[Address]) -> None:
        """Drop peers that will not come back, and what is held for them."""
        gone = {*names}
        self._held = deque(held for held in self._held if held.to not in gone)
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

"""The port between cores on different processes: addresses in, messages out, every wait bounded.

A link is used by one thread, the one that runs the cores; only `wake` may be called from others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import msgspec

from raysync.address import Address
from raysync.engine.messages import Message


class Endpoint(msgspec.Struct, frozen=True):
    """Where a direct link listens."""

    tcp: str
    ipc: str
    """A socket in the file system, taken by peers that can see it."""


class Contact(NamedTuple):
    """All that is known of how to reach an actor."""

    actor: Any
    """Its Ray handle."""
    endpoint: Endpoint | None
    """None where it has no direct link."""


class Envelope(NamedTuple):
    """A message and the core of this process it is for."""

    to: Address
    message: Message


class Link(Protocol):
    """What both transports offer."""

    kind: str

    def connect(self, book: Mapping[Address, Contact]) -> None:
        """Learn where peers are, in addition to those known; a changed contact replaces the old one."""

    def forget(self, names: Iterable[Address]) -> None:
        """Drop peers that will not come back, and what waits for them."""

    def send(self, to: Address, message: Message) -> None:
        """Send, in order per peer. Takes in arrivals while it waits for room; raises `PeerLost` if none is made
        within the bound, or `UnknownPeer`.
        """

    def receive(self, timeout_s: float) -> list[Envelope]:
        """Return what has arrived, waiting up to `timeout_s` for a first message; raises `PeerLost` for what could not
        be delivered.
        """

    def probe(self, peers: list[Address], timeout_s: float) -> list[Address]:
        """Return the peers that cannot be reached within the bound."""

    def wake(self) -> None:
        """Let `receive` return now; callable from any thread."""

    def flush(self, timeout_s: float) -> bool:
        """Hand over what waits to be sent, for at most so long; return whether all of it left."""

    def close(self, linger_s: float = 0.0) -> None:
        """Free sockets and threads; what is on its way may take `linger_s` to leave."""

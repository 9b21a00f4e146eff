"""How many connections there may be, how much and how long each may take to ask: what holds before a token is seen."""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Callable, Collection
from typing import NamedTuple

_RESERVED = 256
"""Descriptors for the database, files and the gateway."""
_MAX_DESCRIPTORS = 65536


class Bounds(NamedTuple):
    """What one connection, one address and all of them together may take."""

    header_bytes: int = 65536
    header_s: float = 10.0
    """From the first byte of a request, or from the connection's start, to the end of its headers."""
    body_s: float = 30.0
    body_bytes_per_s: float = 16384.0
    """A body may take `body_s`, and longer only while it comes at least this fast."""
    stalled_s: float = 120.0
    """So long a client may take nothing of an answer that waits for it."""
    per_address: int = 1000
    in_all: int = 10_000

    def body_allowance_s(self, received_bytes: int) -> float:
        """Return how long after its headers a body of which so much has come may still be incomplete."""
        return self.body_s + received_bytes / self.body_bytes_per_s


def admit(bounds: Bounds, open_here: int, open_in_all: int, *, is_proxy: bool) -> str | None:
    """Return why another connection of an address is refused, or None; a trusted proxy speaks for many clients."""
    if open_in_all >= bounds.in_all:
        return "too_many"
    if open_here >= bounds.per_address and not is_proxy:
        return "too_many_of_address"
    return None


def within_descriptors(bounds: Bounds) -> Bounds:
    """Return bounds this process's descriptors suffice for, having asked for as many as it may have.

    One address gets half of them at most: a client that takes all it can get leaves room for the others.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft == resource.RLIM_INFINITY:
        soft = _MAX_DESCRIPTORS
    in_all = min(bounds.in_all, max(soft - _RESERVED, soft // 2))
    return bounds._replace(in_all=in_all, per_address=min(bounds.per_address, max(1, in_all // 2)))


class Connections:
    """Counts open connections by address, and tells its owner what was refused."""

    def __init__(self, bounds: Bounds, proxies: Collection[str], refused: Callable[[str], None]) -> None:
        self.bounds, self._proxies, self.refused = bounds, frozenset(proxies), refused
        self._open: Counter[str] = Counter()
        self._in_all = 0

    def __len__(self) -> int:
        """Return how many are open."""
        return self._in_all

    def enter(self, address: str) -> str | None:
        """Count a new connection, or return why it is refused; one that was let in leaves later."""
        why = admit(self.bounds, self._open.get(address, 0), self._in_all, is_proxy=address in self._proxies)
        if why is None:
            self._open[address] += 1
            self._in_all += 1
        return why

    def leave(self, address: str) -> None:
        """Count a connection that has ended."""
        self._in_all -= 1
        self._open[address] -= 1
        if self._open[address] <= 0:
            del self._open[address]

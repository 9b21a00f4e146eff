"""Trouble beside a service under load, in a process of its own: a viewer whose streams catch up again and again,
requests that are never sent whole, a database that somebody holds locked.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import time
from typing import Any, NamedTuple
from urllib.parse import urlsplit

STREAMS, HALF_OPEN = 200, 300
LOCKED_S = 20.0


class Target(NamedTuple):
    """Whom to trouble, and with what."""

    url: str
    token: str
    """A viewer's."""
    told: str
    """A job that has told much."""
    database: str
    """The path of its SQLite file."""


def make(target: Target, for_s: float, begun: Any, tally: Any) -> None:
    """Make trouble for a while; `tally` gets what came of it."""
    locked: list[float] = []
    holder = threading.Thread(target=_hold, args=(target.database, locked), daemon=True)
    holder.start()
    counts = {"caught_up_bytes": 0, "half_open": 0, "ended_by_service": 0}
    with contextlib.suppress(TimeoutError):
        asyncio.run(_all(target, for_s, begun, counts))
    holder.join(30)
    tally.put({**counts, "locked_s": sum(locked)})


async def _all(target: Target, for_s: float, begun: Any, counts: dict[str, int]) -> None:
    async with asyncio.timeout(for_s), asyncio.TaskGroup() as group:
        for _ in range(STREAMS):
            group.create_task(_catch_up(target, counts))
        for _ in range(HALF_OPEN):
            group.create_task(_half_open(target, counts))
        await asyncio.sleep(2.0)
        begun.set()


async def _catch_up(target: Target, counts: dict[str, int]) -> None:
    place = urlsplit(target.url)
    request = (
        f"GET /api/v1/jobs/{target.told}/events/stream HTTP/1.1\r\nHost: {place.netloc}\r\n"
        f"Authorization: Bearer {target.token}\r\nConnection: close\r\n\r\n"
    )
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(place.hostname, place.port)
            writer.write(request.encode())
            while read := await reader.read(1 << 18):
                counts["caught_up_bytes"] += len(read)
            writer.close()
        await asyncio.sleep(0.05)


async def _half_open(target: Target, counts: dict[str, int]) -> None:
    place = urlsplit(target.url)
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(place.hostname, place.port)
            writer.write(b"GET /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
            counts["half_open"] += 1
            await reader.read(1 << 16)
            counts["ended_by_service"] += 1
            writer.close()
        await asyncio.sleep(0.05)


def _hold(database: str, locked: list[float]) -> None:
    """Hold the database for writers, after a moment in which all is well."""
    time.sleep(5.0)
    connection = sqlite3.connect(database, timeout=30.0, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    since_s = time.monotonic()
    time.sleep(LOCKED_S)
    connection.execute("ROLLBACK")
    locked.append(time.monotonic() - since_s)
    connection.close()

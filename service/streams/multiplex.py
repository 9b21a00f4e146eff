"""Streams of many jobs and studies: each brings its reader up to date, at most ten times a second, and then waits."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator

from service.jobs.feed import HEARTBEAT_S, Feeds
from service.streams.hub import BATCH_S, Hub
from service.streams.position import Position
from service.streams.reader import Reader
from service.streams.source import Source
from service.streams.wanted import Wanted


class Multiplex:
    """Streams for readers of many jobs."""

    def __init__(self, source: Source, feeds: Feeds) -> None:
        self._source, self._feeds = source, feeds

    @property
    def hub(self) -> Hub:
        """What looks after the jobs."""
        return self._source.hub

    async def read(self, wanted: Wanted, start: Position, *, is_resumed: bool) -> AsyncGenerator[bytes, None]:
        """Yield server-sent events from a position on, to the end of all that is named."""
        reader = Reader(self._source, wanted, start, is_resumed)
        told_s = time.monotonic()
        yield b"retry: 1000\n\n"
        async with self.hub.listening(reader.named):
            await reader.begin()
            while not reader.has_ended:
                looked_s, change = time.monotonic(), self.hub.next_change
                chunks = await reader.messages()
                for chunk in chunks:
                    await self._feeds.turn(chunk)
                    yield chunk
                if chunks:
                    told_s = time.monotonic()
                    await asyncio.sleep(max(0.0, BATCH_S - (told_s - looked_s)))
                elif not reader.has_ended:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(BATCH_S if reader.is_owed else HEARTBEAT_S):
                            await change.wait()
                if time.monotonic() - told_s >= HEARTBEAT_S:
                    told_s = time.monotonic()
                    yield b": ping\n\n"

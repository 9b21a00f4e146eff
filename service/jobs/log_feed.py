"""A job's log for many readers: one of them looks for new lines, and what it read is kept for the others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncGenerator
from functools import partial

from raysync.errors import RaysyncError
from raysync.ports import LogPage
from service.errors import DatabaseUnavailable, NotFound
from service.jobs.feed import HEARTBEAT_S, POLL_S
from service.runtime.port import AsyncRuntime
from service.security.redaction import redacted
from service.store import JobRow, Store
from service.store.reading import Pools, Shared

LOG_END = ".end"
"""Behind the number of a log's end: only with it a reader is known to have had all."""
_KEPT_BYTES = 16 << 20
_AT_ONCE = 2
"""Questions to the runtime by readers who catch up: what steers asks it as well."""

logger = logging.getLogger(__name__)


class LogFeed:
    """The log of one job, looked into as long as it has readers."""

    def __init__(self, row: JobRow, feeds: LogFeeds, offset: int) -> None:
        self._row, self._feeds = row, feeds
        self.offset = offset
        """How far it has been read."""
        self.has_ended = self.is_gone = False
        self.readers = 0
        self._grown = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"log of {row.id}")

    async def wait(self, timeout_s: float) -> None:
        """Wait until there is something new, or the time is over."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._grown.wait(), timeout_s)

    async def close(self) -> None:
        """Stop looking."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        while not (self.has_ended or self.is_gone):
            try:
                has_grown = await self._look()
            except DatabaseUnavailable:  # the manager says so, once for all jobs
                has_grown = False
            except Exception:
                logger.exception("the log cannot be read now; trying again", extra={"job": self._row.id})
                has_grown = False
            if has_grown or self.has_ended or self.is_gone:
                grown, self._grown = self._grown, asyncio.Event()
                grown.set()
            else:
                await asyncio.sleep(POLL_S)

    async def _look(self) -> bool:
        """Read on; return whether there was more."""
        try:
            ended = (await self._feeds.row(self._row.id)).is_terminal  # before the last look
        except NotFound:
            self.is_gone = True
            return False
        before = self.offset
        try:
            self.offset = (await self._feeds.page(self._row, before)).offset
        except RaysyncError as error:
            logger.info("no log now: %s", error, extra={"job": self._row.id})  # an ended job is not waited for
        self.has_ended = ended and self.offset == before
        return self.offset != before


class LogFeeds:
    """The logs that have readers."""

    def __init__(self, store: Store, runtime: AsyncRuntime, pools: Pools) -> None:
        self._store, self._runtime, self._pools = store, runtime, pools
        self._feeds: dict[str, LogFeed] = {}
        self._pages: Shared[LogPage] = Shared(_KEPT_BYTES, lambda page: sum(map(len, page.lines)))
        self._asking = asyncio.Semaphore(_AT_ONCE)

    async def row(self, job: str) -> JobRow:
        """Return a job's row."""
        return await self._pools.page(partial(self._store.jobs.get, job))

    async def page(self, row: JobRow, offset: int) -> LogPage:
        """Return the lines from a place on, asked for once by however many want them."""
        return await self._pages.get((row.id, offset), lambda: self._asked(row.path, offset))

    async def tail(self, row: JobRow, lines: int) -> LogPage:
        """Return the last lines."""
        async with self._asking:
            return await self._runtime.log(row.path, None, lines)

    async def read(self, row: JobRow, offset: int, actor: str | None) -> AsyncGenerator[bytes, None]:
        """Yield server-sent events from a place in the log on, to the job's end."""
        feed = self._feeds.get(row.id)
        if feed is None:
            feed = self._feeds[row.id] = LogFeed(row, self, offset)
        feed.readers += 1
        try:
            async for chunk in self._follow(feed, row, offset, actor):
                yield chunk
        finally:
            feed.readers -= 1
            if feed.readers == 0 and self._feeds.get(row.id) is feed:
                del self._feeds[row.id]
                await feed.close()

    async def read_tail(self, row: JobRow, last: LogPage, tail: int, actor: str | None) -> AsyncGenerator[bytes, None]:
        """Yield the last lines of a page that has been read, and all that come after it."""
        lines = [line for line in last.lines if is_from(line, actor)][-tail:]
        yield rendered(LogPage(lines, last.offset), actor)
        async for chunk in self.read(row, last.offset, actor):
            yield chunk

    async def close(self) -> None:
        """End all feeds."""
        for feed in list(self._feeds.values()):
            await feed.close()

    async def _follow(self, feed: LogFeed, row: JobRow, offset: int, actor: str | None) -> AsyncGenerator[bytes, None]:
        told_s = time.monotonic()
        while not feed.is_gone:
            page = LogPage([], offset)
            if offset < feed.offset:
                with contextlib.suppress(RaysyncError):  # it may come back
                    page = await self.page(row, offset)
            if page.offset != offset:
                offset, told_s = page.offset, time.monotonic()
                yield rendered(page, actor)
                continue
            if feed.has_ended:
                yield f"id: {offset}{LOG_END}\nevent: end\ndata: {{}}\n\n".encode()
                return
            await (feed.wait(HEARTBEAT_S) if offset >= feed.offset else asyncio.sleep(POLL_S))
            if time.monotonic() - told_s >= HEARTBEAT_S:
                told_s = time.monotonic()
                yield b": ping\n\n"

    async def _asked(self, path: str, offset: int) -> LogPage:
        async with self._asking:
            return await self._runtime.log(path, offset, 0)


def rendered(page: LogPage, actor: str | None) -> bytes:
    """Return log lines as one server-sent event whose id is where they end."""
    lines = [line for line in page.lines if is_from(line, actor)]
    chunk = "".join(f"data: {json.dumps(redacted(line))}\n" for line in lines)
    return f"id: {page.offset}\nevent: lines\n{chunk}\n".encode()


def is_from(line: str, actor: str | None) -> bool:
    """Return whether a log line is of an actor, or any will do."""
    return actor is None or f" {actor} | " in line[:80]

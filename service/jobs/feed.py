"""Live events for many readers: read from the books once per job, rendered once, and handed to all of them.

A reader that keeps up takes what the feed holds. One that does not simply reads on later, from the books: no other
reader waits for it, and it misses only what the books have thinned out, which it is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import NamedTuple

from service.errors import DatabaseUnavailable, NotFound
from service.security.redaction import redacted
from service.store import EventRow, JobRow, Store
from service.store.reading import Pools, Shared

POLL_S = 0.5
HEARTBEAT_S = 10.0
_PAGE = 250
_KEPT_EVENTS = 5000
_KEPT_HISTORY_BYTES = 16 << 20
_LARGE_BYTES = 16 << 10
_BYTES_PER_S = float(64 << 20)
"""What all who catch up get together: sending is work, and who steers waits for it."""

logger = logging.getLogger(__name__)


class Batch(NamedTuple):
    """Consecutive events, rendered for those who want all and for those who want metrics only."""

    first: int
    last: int
    everything: bytes
    metrics: bytes


class _End(NamedTuple):
    last: int
    state: str
    reason: str


class Feed:
    """What a job tells now; lives as long as it has readers."""

    def __init__(self, job: str, store: Store, pools: Pools, after: int) -> None:
        self._job, self._store, self._pools = job, store, pools
        self.position = after
        """The last event taken from the books."""
        self.end: _End | None = None
        self.readers = 0
        self._batches: deque[Batch] = deque()
        self._due, self._grown = asyncio.Event(), asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"feed {job}")

    def hint(self) -> None:
        """Look into the books now instead of a little later."""
        self._due.set()

    def next(self, after: int) -> Batch | None:
        """Return the batch that holds event `after + 1`, if it is still held."""
        return next((batch for batch in reversed(self._batches) if batch.first <= after + 1 <= batch.last), None)

    async def wait(self, timeout_s: float) -> bool:
        """Wait until there is something new; return whether there is."""
        try:
            await asyncio.wait_for(self._grown.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Stop looking."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        while self.end is None:
            try:
                row, events = await self._pools.page(self._look)
            except DatabaseUnavailable:  # the manager says so, once for all jobs
                await asyncio.sleep(POLL_S)
                continue
            except Exception:
                logger.exception("the books cannot be read now; trying again", extra={"job": self._job})
                await asyncio.sleep(POLL_S)
                continue
            if events:
                self._hold(events)
            elif row is None or (row.is_terminal and self.position >= row.last_sequence):
                self.end = _End(self.position, row.state, row.reason) if row else _End(self.position, "REMOVED", "")
            if events or self.end is not None:
                grown, self._grown = self._grown, asyncio.Event()
                grown.set()
                continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._due.wait(), POLL_S)
            self._due.clear()

    def _look(self) -> tuple[JobRow | None, list[EventRow]]:
        try:
            row = self._store.jobs.get(self._job)  # before the events: its end is known only with all of them
        except NotFound:
            return None, []
        return row, self._store.events.after(self._job, self.position, _PAGE)

    def _hold(self, events: Sequence[EventRow]) -> None:
        batch = rendered(self._job, self.position, events)
        self._batches.append(batch)
        self.position = batch.last
        while self._batches and self._batches[0].last < self.position - _KEPT_EVENTS:
            self._batches.popleft()


class Feeds:
    """The feeds of all jobs that have readers."""

    def __init__(self, store: Store, pools: Pools) -> None:
        self._store, self._pools = store, pools
        self._feeds: dict[str, Feed] = {}
        self.on_hint: Callable[[str], None] | None = None
        """Hears of every hint as well."""
        self._sending = asyncio.Lock()
        self._history: Shared[tuple[JobRow, Batch]] = Shared(
            _KEPT_HISTORY_BYTES, lambda found: len(found[1].everything) + len(found[1].metrics)
        )

    @property
    def num_readers(self) -> int:
        """How many streams are open."""
        return sum(feed.readers for feed in self._feeds.values())

    def hint(self, job: str) -> None:
        """Say that a job has told something."""
        if job in self._feeds:
            self._feeds[job].hint()
        if self.on_hint is not None:
            self.on_hint(job)

    async def read(self, row: JobRow, after: int, *, metrics_only: bool = False) -> AsyncGenerator[bytes, None]:
        """Yield server-sent events from number `after + 1` on, to the job's end."""
        feed = self._feeds.get(row.id)
        if feed is None:
            feed = self._feeds[row.id] = Feed(row.id, self._store, self._pools, row.last_sequence)
        feed.readers += 1
        try:
            yield b"retry: 1000\n\n"
            async for chunk in self._follow(feed, row, after, metrics_only):
                yield chunk
        finally:
            feed.readers -= 1
            if feed.readers == 0 and self._feeds.get(row.id) is feed:
                del self._feeds[row.id]
                await feed.close()

    async def close(self) -> None:
        """End all feeds."""
        for feed in list(self._feeds.values()):
            await feed.close()

    async def _follow(self, feed: Feed, row: JobRow, after: int, metrics_only: bool) -> AsyncGenerator[bytes, None]:
        told_below, told_s = 0, time.monotonic()
        while True:
            batch = feed.next(after)
            if batch is None and after < feed.position:
                row, batch = await self._caught_up(row.id, after)
                if after + 1 < row.thinned_below > told_below:
                    told_below = row.thinned_below
                    yield gap(after, row)
            if batch is not None:
                chunk = batch.metrics if metrics_only else batch.everything
                if batch.first <= after:  # the reader has a part of it
                    chunk = await self._pools.history(partial(self._rest, row.id, after, batch.last, metrics_only))
                after = batch.last
                if chunk:
                    await self.turn(chunk)
                    told_s = time.monotonic()
                    yield chunk
            elif feed.end is not None:
                yield _ended(feed.end)
                return
            else:
                await feed.wait(HEARTBEAT_S)
            if time.monotonic() - told_s >= HEARTBEAT_S:  # also where all that comes is nothing this reader wants
                told_s = time.monotonic()
                yield b": ping\n\n"

    async def turn(self, chunk: bytes) -> None:
        """Let large chunks of all readers go out one by one, at a pace that leaves the loop time for what steers."""
        if len(chunk) > _LARGE_BYTES:
            async with self._sending:
                await asyncio.sleep(len(chunk) / _BYTES_PER_S)

    async def _caught_up(self, job: str, after: int) -> tuple[JobRow, Batch]:
        """Return what follows event `after`; many who catch up with one job read and render it once."""
        return await self._history.get((job, after), lambda: self._pools.history(partial(self._catch_up, job, after)))

    def _catch_up(self, job: str, after: int) -> tuple[JobRow, Batch]:
        row = self._store.jobs.get(job)
        events = self._store.events.after(job, after, _PAGE)
        return row, rendered(job, after, events) if events else Batch(after + 1, row.last_sequence, b"", b"")

    def _rest(self, job: str, after: int, last: int, metrics_only: bool) -> bytes:
        kind = "metrics" if metrics_only else None
        events = self._store.events.after(job, after, last - after, kind)
        return b"".join(_render(job, event) for event in events if event.sequence <= last)


def rendered(job: str, after: int, events: Sequence[EventRow]) -> Batch:
    """Return events that follow number `after` as a batch."""
    chunks = [_render(job, event) for event in events]
    metrics = [chunk for chunk, event in zip(chunks, events, strict=True) if event.kind == "metrics"]
    return Batch(after + 1, events[-1].sequence, b"".join(chunks), b"".join(metrics))


def as_json(job: str, event: EventRow) -> str:
    """Return an event as JSON; its data is JSON already."""
    return (
        f'{{"job":"{job}","sequence":{event.sequence},"kind":"{event.kind}","step":{event.step},'
        f'"time_s":{event.time_s!r},"worker":{json.dumps(event.worker)},"knob_version":{event.knob_version},'
        f'"data":{redacted(event.data)}}}'
    )


def gap(after: int, row: JobRow) -> bytes:
    """Return the event that tells a reader what it cannot get any more."""
    data = {
        "after": after,
        "before": row.thinned_below,
        "why": f"the job is long: of its older metrics and decisions only every {row.thinned_to_every}th is kept",
    }
    return f"event: gap\ndata: {json.dumps(data)}\n\n".encode()


def _render(job: str, event: EventRow) -> bytes:
    return f"id: {event.sequence}\nevent: {event.kind}\ndata: {as_json(job, event)}\n\n".encode()


def _ended(end: _End) -> bytes:
    data = json.dumps({"state": end.state, "reason": redacted(end.reason), "last_sequence": end.last})
    return f"id: {end.last}\nevent: end\ndata: {data}\n\n".encode()

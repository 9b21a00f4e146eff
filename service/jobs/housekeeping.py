"""What a service does now and then, beside looking after jobs: clear away, and keep the books small."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from raysync.control.adopt import Leftover, leftover
from raysync.control.states import JobState
from service.errors import DatabaseUnavailable, NotFound
from service.jobs.workers import Workers
from service.runtime.port import AsyncRuntime
from service.store import JobRow, Store

_LOOK_S = 1.0
_SWEEP_S = 60.0
_NOTE_S = 20.0
_HOUR_S = 3600.0
_BREATH_S = 0.01
"""Between two pieces of a removed job: others write meanwhile."""

logger = logging.getLogger(__name__)


class Housekeeping:
    """The loops; each goes on whatever goes wrong once."""

    def __init__(
        self,
        store: Store,
        runtime: AsyncRuntime,
        workers: Workers,
        *,
        clear_packages: Callable[[], None],
        take_uses: Callable[[], Mapping[str, float]],
    ) -> None:
        self._store, self._runtime, self._workers = store, runtime, workers
        self._clear_packages, self._take_uses = clear_packages, take_uses
        self._unnoted: dict[str, float] = {}
        self._due = asyncio.Event()

    def loops(self) -> list[Coroutine[Any, Any, None]]:
        """Return what runs as long as the service does."""
        return [
            self._keep_clean(),
            self._keep_removing(),
            self._every(_HOUR_S, self._clear_packages, "old packages were not cleared away"),
            self._every(_NOTE_S, self.note_uses, "uses of tokens are noted later"),
            self._every(_NOTE_S, self._store.database.tidy, "the database's log could not be shortened"),
        ]

    def wake(self) -> None:
        """Clear away now what was removed."""
        self._due.set()

    def note_uses(self) -> None:
        """Note when tokens were last used; if that fails, they are noted the next time."""
        self._unnoted |= self._take_uses()
        if self._unnoted:
            self._store.tokens.used(self._unnoted)
            self._unnoted = {}

    async def _every(self, seconds: float, work: Callable[[], None], problem: str) -> None:
        while True:
            try:
                await self._workers.run(work)
            except DatabaseUnavailable as error:
                logger.warning("%s: %s", problem, error)
            except Exception:
                logger.exception("%s", problem)
            await asyncio.sleep(seconds)

    async def _keep_removing(self) -> None:
        """Clear away removed jobs, also those that a service before this one left half done."""
        while True:
            try:
                for id in await self._workers.run(self._store.removal.pending):
                    while await self._workers.run(self._store.removal.clear_some, id):
                        await asyncio.sleep(_BREATH_S)
            except DatabaseUnavailable as error:
                logger.warning("removed jobs are cleared away later: %s", error)
            except Exception:
                logger.exception("removed jobs are cleared away later")
            try:
                await asyncio.wait_for(self._due.wait(), _SWEEP_S)
            except TimeoutError:
                continue
            self._due.clear()

    async def _keep_clean(self) -> None:
        """When a cluster is joined, and now and then, end what runs there of jobs that have ended."""
        swept: str | None = None
        left_s = 0.0
        while True:
            cluster = self._runtime.cluster
            if cluster is not None and (cluster != swept or left_s <= 0):
                try:
                    for id in await self._runtime.jobs():
                        await self._sweep_one(id)
                    left_s = _SWEEP_S
                except Exception as error:
                    logger.info("not swept yet: %s", error)
                    cluster = None
            swept = cluster
            await asyncio.sleep(_LOOK_S)
            left_s -= _LOOK_S

    async def _sweep_one(self, id: str) -> None:
        """Do about a controller what the books and the job's own word say together."""
        row = await self._workers.run(self._row, id)
        if row is None or not row.is_terminal:
            return
        seen = await self._runtime.look(id, row.path)
        move, reason = leftover(JobState(row.state), JobState(seen.end) if seen.end else None, row.stop)
        logger.info("%s what is left of it: %s", move.value, reason, extra={"job": id})
        if move is Leftover.CLEAR:
            await self._runtime.forget(id)
        elif move is Leftover.STOP:
            await self._runtime.stop(id, reason, row.stop_force_after_s or 0.0)

    def _row(self, id: str) -> JobRow | None:
        try:
            return self._store.jobs.get(id)
        except NotFound:
            return None

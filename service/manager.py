"""Who looks after which job, and what routes ask of jobs that run.

Of several service processes on one database each looks after the jobs it holds a lease on, one task per job; turning,
stopping and looking are open to all.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from raysync.errors import NotRunning, RuntimeLost
from raysync.knobs import Knobs
from service.errors import NotFound, WrongState
from service.processes import is_dead, own_id
from service.runtime import Runtime
from service.store import JobRow, Store
from service.tender import Tender

LEASE_S = 15.0
_RENEW_S = 1.0
_LOOK_S = 1.0
_HOUR_S = 3600.0

logger = logging.getLogger(__name__)


class Manager:
    """Has every live job looked after by one service process, and hands requests on to the runtime."""

    def __init__(self, store: Store, runtime: Runtime, tender: Tender, clear_packages: Callable[[], None]) -> None:
        self.store, self.runtime, self._tender, self._clear_packages = store, runtime, tender, clear_packages
        self.id = own_id()
        """Who this process is to others on the same database."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._due = asyncio.Event()
        self._leasing, self._has_released = threading.Lock(), False
        self._loops: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin to look after jobs."""
        await self.runtime.start()
        loops = (self._run(), self._keep_clean(), self._keep_small())
        self._loops = [asyncio.create_task(loop) for loop in loops]

    async def close(self) -> None:
        """Let go of all jobs; they run on."""
        tasks = [*self._loops, *self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(self._release)
        await self.runtime.close()

    def wake(self) -> None:
        """Look for new jobs now."""
        self._due.set()

    # What routes call

    async def turn(self, id: str, changes: dict[str, Any], expected_version: int | None, dry_run: bool) -> Knobs:
        """Turn knobs of a running job; they take effect with the next decision."""
        row = await self._live(id, "its knobs do not turn any more")
        if row.launches == 0:
            raise NotRunning(id, row.state, row.reason)
        knobs = await self.runtime.turn(id, changes, expected_version, dry_run)
        if not dry_run:
            await asyncio.to_thread(self.store.jobs.turned, id, knobs.version, knobs.values)
            logger.info("knobs turned", extra={"job": id, "changes": changes, "version": knobs.version})
        return knobs

    async def stop(self, id: str, reason: str, force_after_s: float) -> JobRow:
        """Ask a job to end; asking again may only shorten the bound, and what has ended stays ended."""
        row = await asyncio.to_thread(self.store.jobs.ask_stop, id, reason, force_after_s)
        if not row.is_terminal and row.launches > 0:
            try:
                await self.runtime.stop(id, row.stop or reason, force_after_s)
            except (RuntimeLost, NotRunning) as error:
                logger.info("the stop is told later: %s", error, extra={"job": id})
        self.wake()
        return row

    async def checkpoint(self, id: str) -> None:
        """Ask a running job for a checkpoint."""
        row = await self._live(id, "it takes no checkpoints any more")
        if row.launches == 0:
            raise NotRunning(id, row.state, row.reason)
        await self.runtime.checkpoint(id)

    async def _live(self, id: str, remedy: str) -> JobRow:
        row = await asyncio.to_thread(self.store.jobs.get, id)
        if row.is_terminal:
            raise WrongState(id, row.state, remedy)
        return row

    # One task per job

    async def _run(self) -> None:
        while True:
            try:
                mine = await asyncio.to_thread(self._lease)
                for id in mine - self._tasks.keys():
                    self._tasks[id] = asyncio.create_task(self._tender.tend(id), name=f"job {id}")
                for id, task in list(self._tasks.items()):
                    if id not in mine:  # ended, or somebody else's now
                        task.cancel()
                    if task.done() or id not in mine:
                        del self._tasks[id]
            except Exception:
                logger.exception("jobs could not be looked after; trying again")
            try:
                await asyncio.wait_for(self._due.wait(), _RENEW_S)
            except TimeoutError:
                continue
            self._due.clear()

    def _lease(self) -> set[str]:
        """Return the jobs that are this process's to look after; a dead one's are taken over at once."""
        jobs = self.store.jobs
        dead = {owner for owner in jobs.lease_owners() if owner != self.id and is_dead(owner)}
        with self._leasing:
            now_s = time.time()
            return set() if self._has_released else jobs.lease(self.id, now_s, now_s + LEASE_S, dead)

    def _release(self) -> None:
        """Give up all jobs; a lease that is being taken in its thread right now must not outlive this."""
        with self._leasing:
            self._has_released = True
            self.store.jobs.release(self.id)

    async def _keep_clean(self) -> None:
        """Each time a cluster is joined, end what runs there of jobs that have ended in the books."""
        swept: str | None = None
        while True:
            cluster = self.runtime.cluster
            if cluster is not None and cluster != swept:
                try:
                    for id in await self.runtime.jobs():
                        await self._sweep_one(id)
                except Exception as error:
                    logger.info("not swept yet: %s", error)
                    cluster = None
            swept = cluster
            await asyncio.sleep(_LOOK_S)

    async def _keep_small(self) -> None:
        """Now and then clear away code that no job needs any more."""
        while True:
            try:
                await asyncio.to_thread(self._clear_packages)
            except Exception:
                logger.exception("old packages were not cleared away")
            await asyncio.sleep(_HOUR_S)

    async def _sweep_one(self, id: str) -> None:
        try:
            row = await asyncio.to_thread(self.store.jobs.get, id)
        except NotFound:
            return  # somebody else's
        if row.is_terminal:
            logger.info("clearing away what is left of it", extra={"job": id})
            await self.runtime.forget(id)

"""Who looks after which job.

Of several service processes on one database each looks after the jobs it holds a lease on, one task per job; turning,
stopping and looking are open to all. A service that reaches no Ray cluster gives its jobs up: another may reach it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time

from raysync.control.adopt import NO_CLUSTER, Move, adopt
from raysync.errors import RaysyncError
from raysync.reason import shortened
from service.errors import DatabaseUnavailable
from service.jobs.follower import Follower, known_of
from service.jobs.housekeeping import Housekeeping
from service.jobs.steering import Steering
from service.jobs.workers import Workers
from service.runtime.port import AsyncRuntime
from service.runtime.processes import is_dead, own_id
from service.store import Store

LEASE_S = 15.0
_RENEW_S = 1.0
_CLOSE_S = 3.0
_SHOWN = 20

logger = logging.getLogger(__name__)


class Manager:
    """Has every live job looked after by one service process."""

    def __init__(
        self, store: Store, runtime: AsyncRuntime, follower: Follower, housekeeping: Housekeeping, max_live_jobs: int
    ) -> None:
        self.store, self.runtime, self._follower, self._housekeeping = store, runtime, follower, housekeeping
        self.max_live_jobs = max_live_jobs
        self.id = own_id()
        """Who this process is to others on the same database."""
        self.left_running: list[str] | None = None
        """Which jobs ran on the cluster when this service let go of it; None if no cluster answered."""
        self.steering = Steering(store, runtime, self.wake)
        """What routes ask of jobs that run."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._due = asyncio.Event()
        self._leasing, self._has_released = threading.Lock(), False
        self._leases = Workers("leases", 1)
        self._silent_since_s: dict[str, float] = {}
        """Since when no service has looked after a job that was started."""
        self._has_answered = True
        self._loops: list[asyncio.Task[None]] = []
        self._started_s = time.time()

    async def start(self) -> None:
        """Begin to look after jobs."""
        await self.runtime.start()
        loops = (self._run(), *self._housekeeping.loops())
        self._loops = [asyncio.create_task(loop) for loop in loops]

    async def close(self) -> None:
        """Let go of all jobs; they run on. A database that does not answer holds nothing up."""
        tasks = [*self._loops, *self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.steering.close()
        for work in (self._release, self._housekeeping.note_uses):
            try:
                await self._leases.run(work)
            except DatabaseUnavailable as error:
                logger.warning("not noted at the end: %s", error)
        with contextlib.suppress(RaysyncError, TimeoutError):
            self.left_running = await asyncio.wait_for(self._follower.running(), _CLOSE_S)
        self._leases.close()
        await self.runtime.close()

    def wake(self) -> None:
        """Look for new jobs now."""
        self._due.set()

    def removed(self) -> None:
        """Clear away what was removed, soon."""
        self._housekeeping.wake()

    # One task per job

    async def _run(self) -> None:
        while True:
            try:
                mine = await self._leases.run(self._look)
                if fresh := mine - self._tasks.keys():
                    await self._leases.run(self._tell_found, fresh)
                self._share_out(mine)
                self._has_answered = True
            except DatabaseUnavailable as error:
                if self._has_answered:
                    logger.warning("%s; jobs run on, and what they tell is taken in later", error)
                self._has_answered = False
            except Exception:
                logger.exception("jobs could not be looked after; trying again")
            try:
                await asyncio.wait_for(self._due.wait(), _RENEW_S)
            except TimeoutError:
                continue
            self._due.clear()

    def _tell_found(self, ids: set[str]) -> None:
        """Log which of these jobs this process did not start: an earlier or another one has, or it could not reach them
        for a while. What only waited in line is not found, its turn has come.
        """
        rows = sorted((row for row in self.store.jobs.live() if row.id in ids), key=lambda row: row.id)
        left = [row for row in rows if row.launches or (row.admitted_s or self._started_s) < self._started_s]
        if left:
            shown = ", ".join(f"{row.id} ({row.state}, step {row.step})" for row in left[:_SHOWN])
            more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
            logger.info("found %d job%s: %s%s", len(left), "s" if len(left) > 1 else "", shown, more)

    def _share_out(self, mine: set[str]) -> None:
        """Have a task for each job of ours, and for no other."""
        for id in mine - self._tasks.keys():
            self._tasks[id] = asyncio.create_task(self._follower.look_after(id), name=f"job {id}")
        for id, task in list(self._tasks.items()):
            if id not in mine:  # ended, or another service's now
                task.cancel()
            if task.done() or id not in mine:
                del self._tasks[id]

    def _look(self) -> set[str]:
        """Let jobs start whose turn it is, and return those that are this process's to look after."""
        cluster, address, now_s = self.runtime.cluster, self.runtime.address, time.time()
        dead = {owner for owner in self.store.leases.owners() if owner != self.id and is_dead(owner)}
        if cluster is None:
            self.store.queue.explain(NO_CLUSTER)
        else:
            self.store.queue.admit(self.max_live_jobs, address, now_s)
        with self._leasing:
            if self._has_released:
                return set()
            # A dead one's jobs are taken over at once; `now` again, for a thread that waited for the database.
            now_s = time.time()
            mine = self.store.leases.take(self.id, now_s, now_s + LEASE_S, dead, cluster=cluster, address=address)
        self._note_silence(cluster, address, dead)
        return mine

    def _note_silence(self, cluster: str | None, address: str, dead: set[str]) -> None:
        """Write down of jobs that no service looks after what that means for them: for now, that they may train on."""
        rows = self.store.leases.unattended(time.time(), dead)
        self._silent_since_s = {row.id: self._silent_since_s.get(row.id, time.monotonic()) for row in rows}
        for row in rows:
            silent_s = time.monotonic() - self._silent_since_s[row.id]
            verdict = adopt(known_of(row, cluster, address, silent_s))
            state = str(verdict.state or row.state)
            if verdict.move is Move.WAIT and (state, shortened(verdict.reason)) != (row.state, row.reason):
                changes = {"state": state, "reason": verdict.reason}
                self.store.leases.note(row.id, changes, time.time(), dead)

    def _release(self) -> None:
        """Give up all jobs; a lease that is being taken in its thread right now must not outlive this."""
        with self._leasing:
            self._has_released = True
            self.store.leases.release(self.id, wait_s=_CLOSE_S)

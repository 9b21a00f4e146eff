"""Looks after the jobs: launches them, follows them to their end, finds them again after a restart.

What to do about a job is `raysync.control.adopt`'s to say; here it is carried out, one task per live job. Of several
service processes on one database each looks after the jobs it holds a lease on; the rest is open to all.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from raysync.control.adopt import Known, Move, Verdict, adopt
from raysync.control.states import JobState
from raysync.errors import NotRunning, RaysyncError, RuntimeFailed, RuntimeLost
from raysync.knobs import Knobs
from raysync.ports import Launch, Record, Sighting
from service.errors import NotFound, WrongState
from service.feed import Feeds
from service.fold import fold
from service.processes import is_dead, own_id
from service.runtime import Runtime
from service.store import JobRow, Store

LEASE_S = 15.0
_RENEW_S = 1.0
_LOOK_S = 1.0
_FOLLOW_S = 5.0
_STATUS_S = 2.0

logger = logging.getLogger(__name__)


class Manager:
    """Carries out what is decided about every live job."""

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        feeds: Feeds,
        *,
        storage: str,
        unpack: Callable[[str], str],
        events_per_job: int,
    ) -> None:
        self.store, self.runtime, self.feeds = store, runtime, feeds
        self._storage, self._unpack, self._events_per_job = storage, unpack, events_per_job
        self.id = own_id()
        """Who this process is to others on the same database."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._due = asyncio.Event()
        self._leasing, self._has_released = threading.Lock(), False
        self._loops: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin to look after jobs."""
        await self.runtime.start()
        self._loops = [asyncio.create_task(self._run(), name="manager"), asyncio.create_task(self._keep_clean())]

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
                    self._tasks[id] = asyncio.create_task(self._tend(id), name=f"job {id}")
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

    async def _tend(self, id: str) -> None:
        """Do what is to be done about a job until it has ended."""
        while True:
            try:
                row = await asyncio.to_thread(self.store.jobs.get, id)
                known = await self._known(row)
                verdict = adopt(known)
                if verdict.move is Move.REST:
                    return
                await self._carry_out(row, known, verdict)
            except NotFound:
                return
            except (RuntimeLost, NotRunning) as error:
                logger.info("%s", error, extra={"job": id})
                await asyncio.sleep(_LOOK_S)
            except Exception:
                logger.exception("looking after a job failed; trying again", extra={"job": id})
                await asyncio.sleep(_LOOK_S)

    async def _known(self, row: JobRow) -> Known:
        seen = Sighting(has_controller=False)
        cluster = self.runtime.cluster
        if cluster is not None and not row.is_terminal:
            seen = await self.runtime.look(row.id, row.path)
        return Known(
            state=JobState(row.state),
            reason=row.reason,
            launches=row.launches,
            launched_on=row.launched_on,
            cluster=cluster,
            unreachable_s=self.runtime.unreachable_s,
            has_controller=seen.has_controller,
            end=JobState(seen.end) if seen.end is not None else None,
            end_reason=seen.end_reason,
            stop=row.stop,
            on_cluster_loss="resume" if row.on_cluster_loss == "resume" else "fail",
            has_checkpoint=seen.has_checkpoint,
            has_trained=row.started_s is not None,
        )

    async def _carry_out(self, row: JobRow, known: Known, verdict: Verdict) -> None:
        if verdict.move not in (Move.WAIT, Move.FOLLOW):
            logger.info("%s: %s", verdict.move.value, verdict.reason, extra={"job": row.id})
        match verdict.move:
            case Move.WAIT:
                await self._wait(row, verdict)
            case Move.LAUNCH | Move.RELAUNCH:
                await self._launch(row, again=verdict.move is Move.RELAUNCH)
            case Move.FOLLOW:
                await self._follow(row)
            case Move.FINISH | Move.STOP | Move.FAIL:
                ends = {Move.FINISH: known.end, Move.STOP: JobState.STOPPED}
                await self._read_rest(row)
                await self._enter(row.id, ends.get(verdict.move) or JobState.FAILED, verdict.reason)
                if row.launches > 0 and self.runtime.cluster is not None:
                    await self._clear_away(row.id)

    async def _wait(self, row: JobRow, verdict: Verdict) -> None:
        state = (verdict.state or JobState(row.state)).value
        if (state, verdict.reason) != (row.state, row.reason):
            await self._change(row.id, {"state": state, "reason": verdict.reason})
        await asyncio.sleep(_LOOK_S)

    async def _launch(self, row: JobRow, again: bool) -> None:
        """Start a job; what can never be started has failed, what cannot now is tried again."""
        try:
            working_dir = await asyncio.to_thread(self._unpack, row.package) if row.package else None
        except (OSError, RaysyncError) as error:
            await self._enter(row.id, JobState.FAILED, f"its package could not be unpacked: {error}")
            return
        await asyncio.to_thread(self.store.jobs.count_launch, row.id)
        order = Launch(
            job=row.id,
            spec=row.spec,
            storage=self._storage,
            working_dir=working_dir,
            pip=row.pip,
            resume_from=row.resume_from,
            again=again,
        )
        try:
            cluster = await self.runtime.launch(order)
        except (RuntimeLost, NotRunning, RuntimeFailed) as error:
            await self._change(row.id, {"reason": f"it could not be started yet: {error}"})
            raise
        except RaysyncError as error:
            await self._enter(row.id, JobState.FAILED, f"it could not be started: {error}")
            return
        await self._change(row.id, {"launched_on": cluster})

    async def _follow(self, row: JobRow) -> None:
        """Take in what a job tells, to its end; raises when it cannot be reached any more."""
        told_stop: tuple[str, float] | None = None
        looked_s = -math.inf
        while not row.is_terminal:
            if time.monotonic() - looked_s > _STATUS_S:
                row = await asyncio.to_thread(self.store.jobs.get, row.id)
                stop = None if row.stop is None else (row.stop, row.stop_force_after_s or 0.0)
                if stop is not None and stop != told_stop:  # by whichever service it was asked
                    await self.runtime.stop(row.id, *stop)
                    told_stop = stop
                status = await self.runtime.status(row.id)
                row = await self._look_closer(row, status, anew=looked_s < 0)
                looked_s = time.monotonic()
            told = await self.runtime.records(row.id, row.last_sequence, _FOLLOW_S)
            entered = [JobState(record.data["state"]) for record in told.records if record.kind == "state"]
            if any(state.is_terminal for state in entered):
                row = await self._look_closer(row, await self.runtime.status(row.id), anew=False)  # one last time
            elif entered:
                looked_s = -math.inf
            row = await self._take_in(row, told.records)
            if not told.records and JobState(status["state"]).is_terminal and not row.is_terminal:
                await self._enter(row.id, JobState(status["state"]), status["reason"])  # its journal lost its end
                row = await asyncio.to_thread(self.store.jobs.get, row.id)
        logger.info("%s: %s", row.state, row.reason, extra={"job": row.id})
        await self._clear_away(row.id)

    async def _clear_away(self, id: str) -> None:
        """Leave nothing of an ended job on the cluster; the sweep after the next join is the last try."""
        for wait_s in (0.5, 2.0, 5.0):
            try:
                await self.runtime.forget(id)
                return
            except RaysyncError as error:
                logger.warning("not cleared away yet: %s", error, extra={"job": id})
                await asyncio.sleep(wait_s)

    async def _look_closer(self, row: JobRow, status: dict[str, Any], anew: bool) -> JobRow:
        """Take in what the journal does not tell: what really runs, and why a job still is where it is.

        Anew, after nobody could ask or the job changed its state, also the state and the knobs: the books may have
        shown it as waiting, and a job that went back to a checkpoint has that one's knobs.
        """
        state, knobs = JobState(status["state"]), status["knobs"]
        actors = status["actors"] or status["runs"].get("actors", {})
        fresh: dict[str, Any] = {"runs": {**status["runs"], "actors": actors}}
        if anew and not state.is_terminal:
            in_force = {"knob_version": knobs["version"], "knob_version_in_force": knobs["version"]}
            fresh |= {"state": state.value, "knobs": knobs["values"], **in_force}
        if fresh.get("state", row.state) == state.value:
            fresh["reason"] = status["reason"]
        if any(getattr(row, name) != value for name, value in fresh.items()):
            return await asyncio.to_thread(self.store.jobs.change, row.id, fresh)
        return row

    async def _read_rest(self, row: JobRow) -> None:
        """Take in what a job wrote into its folder while nobody listened."""
        if row.launches == 0 or self.runtime.cluster is None:
            return
        offset = 0
        while True:
            told = await self.runtime.written_records(row.path, offset)
            if told.offset == offset:
                return
            offset = told.offset
            row = await self._take_in(row, told.records)

    async def _take_in(self, row: JobRow, records: list[Record]) -> JobRow:
        fresh = [record for record in records if record.sequence > row.last_sequence]
        if not fresh:
            return row
        row = await asyncio.to_thread(self.store.jobs.get, row.id)
        await asyncio.to_thread(self.store.events.append, row.id, fresh, fold(row, fresh, time.time()))
        self.feeds.hint(row.id)
        row = await asyncio.to_thread(self.store.jobs.get, row.id)
        if row.num_events > self._events_per_job:
            gone = await asyncio.to_thread(self.store.events.thin, row.id, self._events_per_job)
            if gone:
                logger.info("%d old events were thinned out", gone, extra={"job": row.id})
        return row

    async def _enter(self, id: str, state: JobState, reason: str) -> None:
        """Write a job's end into the books, unless its own journal has told it."""
        row = await asyncio.to_thread(self.store.jobs.get, id)
        if row.is_terminal:
            return
        data = {"state": state.value, "reason": reason, "before": row.state, "at_s": time.time()}
        record = Record(sequence=row.last_sequence + 1, kind="state", time_s=0.0, step=row.step, data=data)
        await self._take_in(row, [record])

    async def _change(self, id: str, changes: dict[str, Any]) -> None:
        await asyncio.to_thread(self.store.jobs.change, id, changes)

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

    async def _sweep_one(self, id: str) -> None:
        try:
            row = await asyncio.to_thread(self.store.jobs.get, id)
        except NotFound:
            return  # somebody else's
        if row.is_terminal:
            logger.info("clearing away what is left of it", extra={"job": id})
            await self.runtime.forget(id)

"""The life of one job in the books: launched, followed to its end, found again after a restart.

What to do next is `raysync.control.adopt`'s to say; here it is carried out, step by step, until the job has ended.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import Any

import msgspec

from raysync.control.adopt import Known, Move, Verdict, adopt
from raysync.control.polling import MAX_POLLS, poll_pause_s, poll_wait_s, status_every_s
from raysync.control.states import JobState
from raysync.errors import NotRunning, RaysyncError, RuntimeFailed, RuntimeLost, StorageError
from raysync.events import StateChange
from raysync.knobs import Knobs
from raysync.ports import JobStatus, Launch, Sighting
from service.errors import DatabaseUnavailable, NotFound
from service.jobs.intake import Intake
from service.jobs.projection import runs_of
from service.jobs.versions import has_gone_back
from service.jobs.workers import Workers
from service.runtime.port import AsyncRuntime
from service.store import JobRow, Store
from service.store.job_row import is_of_study

_LOOK_S = 1.0
_MAX_LOOK_S = 10.0
_RESTART_S = 0.5
"""In less, no controller comes back: what it tells then follows what it told before."""

logger = logging.getLogger(__name__)


class Follower:
    """Looks after jobs one by one; holds nothing of its own, so a job may change hands at any moment."""

    def __init__(
        self,
        store: Store,
        runtime: AsyncRuntime,
        intake: Intake,
        workers: Workers,
        *,
        storage: str,
        unpack: Callable[[str], str],
    ) -> None:
        self._store, self._runtime, self._intake, self._workers = store, runtime, intake, workers
        self._storage, self._unpack = storage, unpack
        self._num_followed, self._polls = 0, asyncio.Semaphore(MAX_POLLS)

    async def look_after(self, id: str) -> None:
        """Do what is to be done about a job until it has ended."""
        missing_since_s, wait_s = math.inf, _LOOK_S
        while True:
            try:
                row = await self._workers.run(self._store.jobs.get, id)
                known = await self._known(row, missing_since_s)
                is_missing = known.cluster is not None and not known.has_controller
                missing_since_s = min(missing_since_s, time.monotonic()) if is_missing else math.inf
                verdict = adopt(known)
                if verdict.move is Move.REST:
                    return
                await self._carry_out(row, known, verdict)
                wait_s = _LOOK_S
                continue
            except NotFound:
                return
            except DatabaseUnavailable:
                wait_s = min(_MAX_LOOK_S, 2 * wait_s)  # the manager says so, once for all jobs
            except (RuntimeLost, NotRunning) as error:
                logger.info("%s", error, extra={"job": id})
                wait_s = _LOOK_S
            except Exception:
                logger.exception("looking after a job failed; trying again", extra={"job": id})
                wait_s = min(_MAX_LOOK_S, 2 * wait_s)
            await asyncio.sleep(wait_s)

    async def running(self) -> list[str]:
        """Return the jobs that have a controller on the cluster and have not ended by their own word."""
        ids = await self._runtime.jobs()
        seen = await asyncio.gather(*(self._runtime.look(id, f"{self._storage.rstrip('/')}/{id}") for id in ids))
        return [id for id, sighting in zip(ids, seen, strict=True) if sighting.end is None]

    async def _known(self, row: JobRow, missing_since_s: float) -> Known:
        seen = Sighting(has_controller=False)
        cluster = self._runtime.cluster
        if cluster is not None and not row.is_terminal:
            seen = await self._runtime.look(row.id, row.path)
        known = known_of(row, cluster, self._runtime.address, self._runtime.unreachable_s)
        return msgspec.structs.replace(
            known,
            has_controller=seen.has_controller,
            missing_s=max(0.0, time.monotonic() - missing_since_s),
            end=JobState(seen.end) if seen.end is not None else None,
            end_reason=seen.end_reason,
            has_checkpoint=seen.has_checkpoint,
        )

    async def _carry_out(self, row: JobRow, known: Known, verdict: Verdict) -> None:
        if verdict.move not in (Move.WAIT, Move.FOLLOW):
            logger.info("%s: %s", verdict.move.value, verdict.reason, extra={"job": row.id})
        match verdict.move:
            case Move.WAIT:
                await asyncio.sleep(_LOOK_S)
            case Move.LAUNCH | Move.RELAUNCH:
                await self._launch(row, again=verdict.move is Move.RELAUNCH)
            case Move.FOLLOW:
                if row.launched_on is None:  # it was started by a service that did not come to note it
                    await self._start(self._order(row, None, again=False))
                await self._follow(row)
            case Move.FINISH | Move.STOP | Move.FAIL:
                ends = {Move.FINISH: known.end, Move.STOP: JobState.STOPPED}
                if row.launches > 0 and self._runtime.cluster is not None:
                    await self._intake.read_rest(row)
                await self._intake.enter(row.id, ends.get(verdict.move) or JobState.FAILED, verdict.reason)
                if row.launches > 0 and self._runtime.cluster is not None:
                    await self._clear_away(row.id)

    async def _launch(self, row: JobRow, again: bool) -> None:
        """Start a job; what can never be started has failed, what cannot now is tried again."""
        try:
            working_dir = await self._workers.run(self._unpack, row.package) if row.package else None
        except (OSError, RaysyncError) as error:
            await self._intake.enter(row.id, JobState.FAILED, f"its package could not be unpacked: {error}")
            return
        await self._workers.run(self._store.jobs.count_launch, row.id, self._runtime.address)
        try:
            await self._start(self._order(row, working_dir, again))
        except (RuntimeLost, NotRunning, RuntimeFailed, StorageError) as error:
            if isinstance(error, RuntimeLost):  # silence is no failed start
                await self._workers.run(self._store.jobs.uncount_launch, row.id)
            await self._change(row.id, {"reason": f"it could not be started yet: {error}"})
            raise
        except RaysyncError as error:
            await self._intake.enter(row.id, JobState.FAILED, f"it could not be started: {error}")

    def _order(self, row: JobRow, working_dir: str | None, again: bool) -> Launch:
        """Return what the runtime is told; the knobs only until it has them, for from then on it turns them."""
        return Launch(
            job=row.id,
            spec=row.spec,
            storage=self._storage,
            working_dir=working_dir,
            pip=row.pip,
            resume_from=row.resume_from,
            again=again,
            knobs=Knobs(row.knob_version, row.knobs) if row.launched_on is None else None,
        )

    async def _start(self, order: Launch) -> None:
        """Start a job unless it runs, and hand over its knobs, also those that are turned while it is started."""
        while True:
            cluster = await self._runtime.launch(order)
            handed = order.knobs.version if order.knobs is not None else None
            if handed is None:
                await self._change(order.job, {"launched_on": cluster})
                return
            row = await self._workers.run(self._store.jobs.launched, order.job, cluster, handed)
            if row.launched_on is not None or row.is_terminal:
                return
            order = msgspec.structs.replace(order, knobs=Knobs(row.knob_version, row.knobs))

    async def _follow(self, row: JobRow) -> None:
        """Take in what a job tells, to its end; raises when it cannot be reached any more."""
        self._num_followed += 1
        try:
            row = await self._follow_to_end(row)
        finally:
            self._num_followed -= 1
        logger.info("%s: %s", row.state, row.reason, extra={"job": row.id})
        if not is_of_study(row):  # a trial reads it to its end; left alone, a controller ends by itself
            await self._clear_away(row.id)

    async def _follow_to_end(self, row: JobRow) -> JobRow:
        told_stop: tuple[str, float] | None = None
        looked_s = -math.inf
        while not row.is_terminal:
            if time.monotonic() - looked_s > status_every_s(self._num_followed):
                row = await self._workers.run(self._store.jobs.get, row.id)
                stop = None if row.stop is None else (row.stop, row.stop_force_after_s or 0.0)
                if stop is not None and stop != told_stop:  # by whichever service it was asked
                    await self._runtime.stop(row.id, *stop)
                    told_stop = stop
                status = await self._runtime.status(row.id)
                row = await self._look_closer(row, status, anew=looked_s < 0)
                before, row = row.state, await self._intake.check(row)
                looked_s = time.monotonic() if row.state == before else -math.inf
                continue
            async with self._polls:
                asked_s, wait_s = time.monotonic(), poll_wait_s(self._num_followed)
                told = (await self._runtime.records(row.id, row.source_sequence, wait_s)).records
            entered = [body.state for event in told if isinstance(body := event.body, StateChange)]
            if any(state.is_terminal for state in entered):
                row = await self._look_closer(row, await self._runtime.status(row.id), anew=False)  # one last time
            elif entered:
                looked_s = -math.inf
            was_long = time.monotonic() - asked_s > _RESTART_S
            row = await (self._intake.check(row) if told and was_long else self._intake.take_in(row, told))
            if not told and status.state.is_terminal and not row.is_terminal:
                # Its journal lost its end.
                await self._intake.enter(row.id, status.state, status.reason)
                row = await self._workers.run(self._store.jobs.get, row.id)
            await asyncio.sleep(poll_pause_s(self._num_followed) if told else 0.0)
        return row

    async def _clear_away(self, id: str) -> None:
        """Leave nothing of an ended job on the cluster; the sweep after the next join is the last try."""
        for wait_s in (0.5, 2.0, 5.0):
            try:
                await self._runtime.forget(id)
                return
            except RaysyncError as error:
                logger.warning("not cleared away yet: %s", error, extra={"job": id})
                await asyncio.sleep(wait_s)

    async def _look_closer(self, row: JobRow, status: JobStatus, anew: bool) -> JobRow:
        """Take in what the journal does not tell: what really runs, and why a job still is where it is.

        Anew, after the job could not be asked or changed its state, also the state and the knobs: the books may have
        shown it as waiting, and a job that continues another begins with that one's knobs. Versions never go back.
        """
        knobs, asked = status.knobs, status.asked
        fresh: dict[str, Any] = {"runs": runs_of(status)}
        if anew and not status.state.is_terminal:
            if has_gone_back(row, status):
                row = await self._workers.run(self._store.knobs.went_back, row.id, row, asked, knobs.version)
            in_force = max(row.knob_version_in_force, knobs.version + row.knob_shift)
            fresh |= {"state": status.state.value, "knob_version_in_force": in_force}
            if asked.version + row.knob_shift >= row.knob_version:
                fresh |= {"knobs": asked.values, "knob_version": asked.version + row.knob_shift}
        if fresh.get("state", row.state) == status.state.value:
            fresh["reason"] = status.reason
        if any(getattr(row, name) != value for name, value in fresh.items()):
            return await self._workers.run(self._store.jobs.change, row.id, fresh)
        return row

    async def _change(self, id: str, changes: dict[str, Any]) -> None:
        await self._workers.run(self._store.jobs.change, id, changes)


def known_of(row: JobRow, cluster: str | None, address: str, unreachable_s: float) -> Known:
    """Return what the books know of a job, and nothing that only its cluster or its folder can tell."""
    is_elsewhere = row.launched_address not in (None, address) and row.launched_on != cluster
    return Known(
        state=JobState(row.state),
        reason=row.reason,
        launches=row.launches,
        is_admitted=row.admitted_s is not None,
        launched_on=row.launched_on,
        cluster=cluster,
        elsewhere=row.launched_address if is_elsewhere else None,
        unreachable_s=unreachable_s,
        stop=row.stop,
        on_cluster_loss="resume" if row.on_cluster_loss == "resume" else "fail",
        has_trained=row.started_s is not None,
    )

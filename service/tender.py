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

from raysync.control.adopt import Known, Move, Verdict, adopt
from raysync.control.states import JobState
from raysync.errors import NotRunning, RaysyncError, RuntimeFailed, RuntimeLost, StorageError
from raysync.ports import Launch, Record, Sighting
from service.errors import NotFound
from service.feed import Feeds
from service.fold import fold
from service.runtime import Runtime
from service.store import JobRow, Store

_LOOK_S = 1.0
_FOLLOW_S = 5.0
_STATUS_S = 2.0

logger = logging.getLogger(__name__)


class Tender:
    """Looks after jobs one by one; holds nothing of its own, so a job may change hands at any moment."""

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
        self._store, self._runtime, self._feeds = store, runtime, feeds
        self._storage, self._unpack, self._events_per_job = storage, unpack, events_per_job

    async def tend(self, id: str) -> None:
        """Do what is to be done about a job until it has ended."""
        while True:
            try:
                row = await asyncio.to_thread(self._store.jobs.get, id)
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
        cluster = self._runtime.cluster
        if cluster is not None and not row.is_terminal:
            seen = await self._runtime.look(row.id, row.path)
        return Known(
            state=JobState(row.state),
            reason=row.reason,
            launches=row.launches,
            launched_on=row.launched_on,
            cluster=cluster,
            unreachable_s=self._runtime.unreachable_s,
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
                if row.launches > 0 and self._runtime.cluster is not None:
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
        await asyncio.to_thread(self._store.jobs.count_launch, row.id)
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
            cluster = await self._runtime.launch(order)
        except (RuntimeLost, NotRunning, RuntimeFailed, StorageError) as error:
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
                row = await asyncio.to_thread(self._store.jobs.get, row.id)
                stop = None if row.stop is None else (row.stop, row.stop_force_after_s or 0.0)
                if stop is not None and stop != told_stop:  # by whichever service it was asked
                    await self._runtime.stop(row.id, *stop)
                    told_stop = stop
                status = await self._runtime.status(row.id)
                row = await self._look_closer(row, status, anew=looked_s < 0)
                looked_s = time.monotonic()
            told = await self._runtime.records(row.id, row.last_sequence, _FOLLOW_S)
            entered = [JobState(record.data["state"]) for record in told.records if record.kind == "state"]
            if any(state.is_terminal for state in entered):
                row = await self._look_closer(row, await self._runtime.status(row.id), anew=False)  # one last time
            elif entered:
                looked_s = -math.inf
            row = await self._take_in(row, told.records)
            if not told.records and JobState(status["state"]).is_terminal and not row.is_terminal:
                await self._enter(row.id, JobState(status["state"]), status["reason"])  # its journal lost its end
                row = await asyncio.to_thread(self._store.jobs.get, row.id)
        logger.info("%s: %s", row.state, row.reason, extra={"job": row.id})
        await self._clear_away(row.id)

    async def _clear_away(self, id: str) -> None:
        """Leave nothing of an ended job on the cluster; the sweep after the next join is the last try."""
        for wait_s in (0.5, 2.0, 5.0):
            try:
                await self._runtime.forget(id)
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
            return await asyncio.to_thread(self._store.jobs.change, row.id, fresh)
        return row

    async def _read_rest(self, row: JobRow) -> None:
        """Take in what a job wrote into its folder while nobody listened."""
        if row.launches == 0 or self._runtime.cluster is None:
            return
        offset = 0
        while True:
            told = await self._runtime.written_records(row.path, offset)
            if told.offset == offset:
                return
            offset = told.offset
            row = await self._take_in(row, told.records)

    async def _take_in(self, row: JobRow, records: list[Record]) -> JobRow:
        fresh = [record for record in records if record.sequence > row.last_sequence]
        if not fresh:
            return row
        row = await asyncio.to_thread(self._store.jobs.get, row.id)
        await asyncio.to_thread(self._store.events.append, row.id, fresh, fold(row, fresh, time.time()))
        self._feeds.hint(row.id)
        row = await asyncio.to_thread(self._store.jobs.get, row.id)
        if row.num_events > self._events_per_job:
            gone = await asyncio.to_thread(self._store.events.thin, row.id, self._events_per_job)
            if gone:
                logger.info("%d old events were thinned out", gone, extra={"job": row.id})
        return row

    async def _enter(self, id: str, state: JobState, reason: str) -> None:
        """Write a job's end into the books, unless its own journal has told it."""
        row = await asyncio.to_thread(self._store.jobs.get, id)
        if row.is_terminal:
            return
        data = {"state": state.value, "reason": reason, "before": row.state, "at_s": time.time()}
        record = Record(sequence=row.last_sequence + 1, kind="state", time_s=0.0, step=row.step, data=data)
        await self._take_in(row, [record])

    async def _change(self, id: str, changes: dict[str, Any]) -> None:
        await asyncio.to_thread(self._store.jobs.change, id, changes)

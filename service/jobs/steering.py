"""What routes ask of jobs that run: knobs, stops, checkpoints. Open to every service on the database."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from raysync.control.states import JobState
from raysync.errors import KnobConflict, NotRunning, RaysyncError, RuntimeLost
from raysync.knobs import Knobs
from service.errors import DatabaseUnavailable, WrongState
from service.jobs.versions import has_gone_back
from service.jobs.workers import Workers
from service.runtime.port import AsyncRuntime
from service.store import JobRow, Store

_NOTE_S = 0.1
"""A change that works is answered, however long the books take to note it."""
_NOTE_TRIES, _NOTE_AGAIN_S = 300, 1.0
_ENDED = "its knobs do not turn any more"

logger = logging.getLogger(__name__)


class Steering:
    """Hands requests on to the runtime, and notes in the books what came of them."""

    def __init__(self, store: Store, runtime: AsyncRuntime, wake: Callable[[], None]) -> None:
        self._store, self._runtime, self._workers = store, runtime, Workers("notes", 2)
        self._wake = wake
        """Has jobs looked after now instead of a little later."""
        self._ahead: dict[str, JobRow] = {}
        """Jobs whose knobs are turned and not yet noted in the books."""
        self._noting: set[asyncio.Task[JobRow]] = set()

    async def turn(
        self, id: str, changes: dict[str, Any], expected_version: int | None, dry_run: bool, by: str
    ) -> Knobs:
        """Turn knobs: of a running job they take effect with the next decision, before the first step with it.

        An expected version must not be below the one in the books, and be the runtime's: after the runtime went back,
        versions of its own come again, those of the books do not.
        """
        row = self._ahead.get(id) or await self._live(id, _ENDED, can_go_on=True)
        found = None
        if row.launched_on is None:
            found = await asyncio.to_thread(self._store.knobs.turn_early, id, changes, expected_version, dry_run)
            row = row if found is not None else await self._live(id, _ENDED, can_go_on=True)
        if found is None:
            found = await self._turn_running(row, changes, expected_version, dry_run, by)
        if not dry_run:
            logger.info("knobs turned", extra={"job": id, "changes": changes, "version": found.version})
        return found

    async def _turn_running(
        self, row: JobRow, changes: dict[str, Any], expected_version: int | None, dry_run: bool, by: str
    ) -> Knobs:
        if expected_version is not None and expected_version < row.knob_version:
            raise KnobConflict(expected_version, row.knob_version)
        expected = None if expected_version is None else expected_version - row.knob_shift
        try:
            knobs = await self._runtime.turn(row.id, changes, expected, dry_run, by)
        except KnobConflict as error:
            asked = row.knob_version if expected_version is None else expected_version
            raise KnobConflict(asked, await self._current(row, error.current)) from None
        return Knobs(knobs.version + row.knob_shift, knobs.values) if dry_run else await self._note(row, knobs)

    async def stop(self, id: str, reason: str, force_after_s: float) -> JobRow:
        """Ask a job to end; asking again may only shorten the bound, and what has ended stays ended."""
        row = await asyncio.to_thread(self._store.jobs.ask_stop, id, reason, force_after_s)
        if not row.is_terminal and row.launches > 0:
            try:
                await self._runtime.stop(id, row.stop or reason, force_after_s)
            except (RuntimeLost, NotRunning) as error:
                logger.info("the stop is told later: %s", error, extra={"job": id})
        self._wake()
        return row

    async def checkpoint(self, id: str) -> None:
        """Ask a running job for a checkpoint."""
        row = await self._live(id, "it takes no checkpoints any more")
        if row.launches == 0:
            raise NotRunning(row.id, row.state, row.reason)
        await self._runtime.checkpoint(id)

    async def close(self) -> None:
        """Note nothing any more: the jobs' own events tell the next service."""
        for task in self._noting:
            task.cancel()
        await asyncio.gather(*self._noting, return_exceptions=True)
        self._workers.close()

    async def _live(self, id: str, remedy: str, can_go_on: bool = False) -> JobRow:
        row = await asyncio.to_thread(self._store.jobs.get, id)
        if row.is_terminal:
            raise WrongState(id, row.state, remedy + (await self._way_on(row) if can_go_on else ""))
        return row

    async def _way_on(self, row: JobRow) -> str:
        """Return how to go on with a job that ended early, if it left a checkpoint and the cluster can look for one."""
        if row.state == JobState.SUCCEEDED.value:
            return ""
        try:
            found = await self._runtime.checkpoints(row.path)
        except RaysyncError as error:
            logger.info("not looked for checkpoints: %s", error, extra={"job": row.id})
            return ""
        where = f"; go on from step {found[-1].step} with `raysync submit --resume-from {row.id}`" if found else ""
        return where or "; it left no checkpoint to go on from"

    async def _current(self, row: JobRow, version: int) -> int:
        """Return the version in the books for one the runtime says it is at; a lower one than known is a new one."""
        if version + row.knob_shift >= row.knob_version:
            return version + row.knob_shift
        status = await self._runtime.status(row.id)
        if not has_gone_back(row, status):
            return row.knob_version
        noted = await asyncio.to_thread(self._store.knobs.went_back, row.id, row, status.asked, status.knobs.version)
        return noted.knob_version

    async def _note(self, known: JobRow, knobs: Knobs) -> Knobs:
        """Note a change in the books, and return it as they number it; without waiting if they take long.

        A version of the runtime's that is not above what was known before it was asked means that it has gone back.
        """
        shift = max(known.knob_shift, known.knob_version + 1 - knobs.version)
        new = {"knob_version": knobs.version + shift, "knob_shift": shift, "knobs": knobs.values}
        ahead = self._ahead[known.id] = msgspec.structs.replace(known, **new)
        task = asyncio.create_task(self._noted(ahead, knobs.version))
        self._noting.add(task)
        task.add_done_callback(self._noting.discard)
        done, _ = await asyncio.wait({task}, timeout=_NOTE_S)
        row = task.result() if done else ahead
        return Knobs(knobs.version + row.knob_shift, knobs.values)

    async def _noted(self, ahead: JobRow, version: int) -> JobRow:
        """Note a change until it is noted, or a later one of this job is to be."""
        try:
            for _ in range(_NOTE_TRIES):
                try:
                    note = (ahead.id, version, ahead.knob_shift, ahead.knobs)
                    return await self._workers.run(self._store.knobs.turned, *note)
                except DatabaseUnavailable as error:
                    logger.info("the change is noted later: %s", error, extra={"job": ahead.id})
                await asyncio.sleep(_NOTE_AGAIN_S)
                if self._ahead.get(ahead.id) is not ahead:
                    break
            return ahead
        finally:
            if self._ahead.get(ahead.id) is ahead:
                del self._ahead[ahead.id]

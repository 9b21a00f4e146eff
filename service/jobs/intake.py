"""From a job's journal into the books: every event once, whatever happens to the journal."""

from __future__ import annotations

import logging
import time
from collections.abc import Hashable, Sequence

from raysync.control.splice import splice
from raysync.control.states import JobState
from raysync.events import Event, StateChange
from service.jobs.feed import Feeds
from service.jobs.projection import projected
from service.jobs.workers import Workers
from service.runtime.port import AsyncRuntime
from service.store import EventRow, JobRow, Store
from service.store.events import Restart, data_of
from service.store.series import UNIT

_OVERLAP = 200
"""So many events are compared first when a journal does not go on as it should."""

logger = logging.getLogger(__name__)


class Intake:
    """Takes in what jobs tell."""

    def __init__(
        self, store: Store, runtime: AsyncRuntime, feeds: Feeds, workers: Workers, events_per_job: int
    ) -> None:
        self._store, self._runtime, self._feeds, self._workers = store, runtime, feeds, workers
        self._events_per_job = events_per_job

    async def check(self, row: JobRow) -> JobRow:
        """Take in what is new, having seen that the journal goes on where the books end."""
        last = row.source_sequence
        told = (await self._runtime.records(row.id, last - 1 if last >= 0 else -1, 0.0)).records
        known = await self._workers.run(self._store.events.known_after, row.id, last - 1) if last >= 0 else {}
        has_last = not known or bool(told and told[0].sequence == last and _same(known.get(last), told[0]))
        return await self.take_in(row, told) if has_last else await self._find_again(row)

    async def take_in(self, row: JobRow, records: Sequence[Event]) -> JobRow:
        """Take in what follows what is known; told by a new life of the controller, it is compared first."""
        fresh = [record for record in records if record.sequence > row.source_sequence]
        if not fresh:
            return row
        if row.source_sequence >= 0 and fresh[0].incarnation != row.incarnation:
            return await self._find_again(row)
        return await self._append(row, fresh)

    async def read_rest(self, row: JobRow, back: int = 10 * _OVERLAP) -> JobRow:
        """Take in what a job wrote into its folder while no service heard, having compared the last that is known."""
        offset, read, is_joined = 0, list[Event](), False
        while (told := await self._runtime.written_records(row.path, offset)).offset != offset:
            offset = told.offset
            if is_joined:
                row = await self._append(row, told.records)
                continue
            read = [*read[-back:], *told.records]
            if read and read[-1].sequence > row.source_sequence:
                row, is_joined = await self._join(row, read, back), True
        return row if is_joined or not read else await self._join(row, read, back)

    async def enter(self, id: str, state: JobState, reason: str) -> None:
        """Write a job's end into the books, unless its own journal has told it."""
        row = await self._workers.run(self._store.jobs.get, id)
        if row.is_terminal:
            return
        told = StateChange(state, reason, row.state, time.time())
        time_s = max(0.0, time.time() - row.created_s)  # later than anything its controller told, which began after
        event = Event(sequence=-1, kind=told.kind, time_s=time_s, step=row.step, data=told.data)
        await self._workers.run(self._store.events.append_own, id, event, _folded)
        self._feeds.hint(id)

    async def _find_again(self, row: JobRow) -> JobRow:
        """Compare the journal with the books, further and further back, and take in all from where they part."""
        back = _OVERLAP
        while True:
            after = max(-1, row.source_sequence - back)
            told = await self._pages(row.id, after)
            known = await self._workers.run(self._store.events.known_after, row.id, after)
            first = _first_new(known, told, row.source_sequence)
            if after == -1 or (told and first > told[0].sequence):
                return await self._append(row, [record for record in told if record.sequence >= first], first)
            back *= 8

    async def _pages(self, id: str, after: int) -> list[Event]:
        found = list[Event]()
        while told := (await self._runtime.records(id, after, 0.0)).records:
            found += told
            after = told[-1].sequence
        return found

    async def _join(self, row: JobRow, told: Sequence[Event], back: int) -> JobRow:
        """Take in a part of a written journal from where it goes another way than the books, or beyond them."""
        known = await self._workers.run(self._store.events.known_after, row.id, told[0].sequence - 1)
        first = _first_new(known, told, row.source_sequence)
        if 0 < first == told[0].sequence <= row.source_sequence:  # they part further back
            return await self.read_rest(row, 64 * back)
        return await self._append(row, [record for record in told if record.sequence >= first], first)

    async def _append(self, row: JobRow, records: Sequence[Event], first: int | None = None) -> JobRow:
        if not records:
            return row
        restart = None
        if first is not None:
            restart = Restart(first, row.last_sequence)
            if first <= row.source_sequence:
                lost = row.source_sequence + 1 - first
                logger.warning("its journal lost its last %d events; what came after is taken in", lost,
                               extra={"job": row.id})  # fmt: skip
        found = await self._workers.run(self._store.events.append, row.id, records, _folded, restart=restart)
        self._feeds.hint(row.id)
        if found is None:
            return await self._workers.run(self._store.jobs.get, row.id)
        if found.last_sequence + 1 - found.rolled >= UNIT:
            while await self._workers.run(self._store.series.roll, row.id):
                pass
        if found.num_events > self._events_per_job:
            gone = await self._workers.run(self._store.events.thin, row.id, self._events_per_job)
            if gone:
                logger.info("%d old events were thinned out", gone, extra={"job": row.id})
        return found


def _folded(row: JobRow, records: Sequence[Event]) -> dict[str, object]:
    return projected(row, records, time.time())


def _first_new(known: dict[int, EventRow], told: Sequence[Event], last: int) -> int:
    prints = {number: _print_of_row(event) for number, event in known.items()}
    return splice(prints, ((record.sequence, _print(record)) for record in told), last)


def _same(event: EventRow | None, record: Event) -> bool:
    return event is not None and _print_of_row(event) == _print(record)


def _print(record: Event) -> Hashable:
    return record.kind, record.step, record.time_s, record.worker, data_of(record)


def _print_of_row(event: EventRow) -> Hashable:
    return event.kind, event.step, event.time_s, event.worker, event.data

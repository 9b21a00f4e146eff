"""What jobs told, numbered without gaps; of very long jobs the older metrics are thinned out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, delete, func, select, update

from raysync.events import BY_KIND, ActorStarted, Event, KnobChange, Metrics, body_of
from raysync.metrics import is_evaluation
from service.store.database import Database
from service.store.job_row import JobRow, change, locked
from service.store.tables import events, jobs
from service.store.totals import count_end

_MAX_EVERY = 1024
_PIECE = 10_000
"""Of so many numbers the events are thinned out in one transaction."""

Changes = Mapping[str, Any] | Callable[[JobRow, Sequence[Event]], Mapping[str, Any]]
"""Columns of a job's row; or a function of the row and the events that are new to it, which returns them."""


class Restart(NamedTuple):
    """Where a journal goes another way than the books have it; decided when these ended with a certain event."""

    first: int
    last_sequence: int


class EventRow(NamedTuple):
    """An event; `data` is JSON."""

    sequence: int
    kind: str
    step: int
    time_s: float
    worker: int | None
    knob_version: int
    data: str


_COLUMNS = tuple(events.c[name] for name in EventRow._fields)


class Events:
    """Appends and reads events."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._insert = database.insert(events)

    def append(
        self, job: str, records: Sequence[Event], changes: Changes, *, restart: Restart | None = None
    ) -> JobRow | None:
        """Add what a job's journal has after what is known of it, and change its row, both or neither.

        The books number events themselves: a journal that has lost its end numbers others as it did those. Returns
        the job as it is then; None if it is not on the books any more.
        """
        with self._database.write() as connection:
            row = locked(connection, job)
            if row is None or (restart is not None and row.last_sequence != restart.last_sequence):
                return row  # struck from the books, or taken in by another service meanwhile
            after = row.source_sequence if restart is None else restart.first - 1
            row, fresh = self._numbered(connection, row, [record for record in records if record.sequence > after])
            return self._add(connection, row, fresh, changes, [record.sequence for record in fresh])

    def append_own(self, job: str, record: Event, changes: Changes) -> JobRow | None:
        """Add an event that the books know of and the job's journal does not."""
        with self._database.write() as connection:
            row = locked(connection, job)
            return None if row is None else self._add(connection, row, [record], changes, [None])

    def _numbered(
        self, connection: Connection, row: JobRow, records: Sequence[Event]
    ) -> tuple[JobRow, Sequence[Event]]:
        """Return the records with the versions the books have for the runtime's, and the row with the shift between.

        Every turn of a knob is a version of its own: one that was told before means that the runtime went back, and the
        books may hear of it here first, before the service that turned the knob has noted it. Only what a coordinator
        takes over from before it began, and says why, is told again under its old version.
        """
        last = _last_version(connection, row.id) if any(record.kind == KnobChange.kind for record in records) else -1
        shifted = []
        for record in records:
            version = record.knob_version + row.knob_shift
            if record.kind == KnobChange.kind:
                if version <= last and record.data.get("why") is None:
                    version = max(row.knob_version, last) + 1
                    row = msgspec.structs.replace(row, knob_shift=version - record.knob_version)
                last = max(last, version)
            shifted.append(msgspec.structs.replace(record, knob_version=version))
        return row, shifted

    def _add(
        self,
        connection: Connection,
        row: JobRow,
        fresh: Sequence[Event],
        changes: Changes,
        sources: Sequence[int | None],
    ) -> JobRow:
        values = dict(changes(row, fresh) if callable(changes) else changes)
        values |= {"knob_shift": row.knob_shift} if "knob_version" in values else {}
        if fresh:
            first = row.last_sequence + 1
            connection.execute(
                self._insert,
                [_values(row.id, first + n, *pair) for n, pair in enumerate(zip(fresh, sources, strict=True))],
            )
            counts: dict[str, Any] = {
                "last_sequence": row.last_sequence + len(fresh),
                "num_events": row.num_events + len(fresh),
            }
            if sources[-1] is not None:
                counts |= {"source_sequence": sources[-1], "incarnation": fresh[-1].incarnation}
            connection.execute(update(jobs).where(jobs.c.id == row.id).values(counts))
        change(connection, row.id, values)
        after = locked(connection, row.id)
        assert after is not None
        if after.is_terminal and not row.is_terminal:
            count_end(self._database, connection, after)
        return after

    def known_after(self, job: str, source: int) -> dict[int, EventRow]:
        """Return events by their number in the job's journal, those with larger ones; the latest of each number."""
        number = func.coalesce(events.c.source, events.c.sequence)
        query = select(number.label("number"), *_COLUMNS).where(events.c.job == job, number > source)
        query = query.where(events.c.sequence > source)  # the books number no event below its number in the journal
        with self._database.read() as connection:
            return {row[0]: EventRow(*row[1:]) for row in connection.execute(query.order_by(events.c.sequence))}

    def after(self, job: str, sequence: int, limit: int, kind: str | None = None) -> list[EventRow]:
        """Return up to `limit` events with larger numbers, of one kind or of all."""
        query = select(*_COLUMNS).where(events.c.job == job, events.c.sequence > sequence)
        if kind is not None:
            query = query.where(events.c.kind == kind)
        with self._database.read() as connection:
            return [EventRow(*row) for row in connection.execute(query.order_by(events.c.sequence).limit(limit))]

    def starts(self, job: str) -> dict[str, list[ActorStarted]]:
        """Return every time an actor of a job has come up, by its name."""
        query = select(events.c.data).where(events.c.job == job, events.c.kind == ActorStarted.kind)
        found: dict[str, list[ActorStarted]] = {}
        with self._database.read() as connection:
            for row in connection.execute(query.order_by(events.c.sequence)):
                told = body_of(ActorStarted.kind, msgspec.json.decode(row[0]))
                if isinstance(told, ActorStarted):
                    found.setdefault(told.name, []).append(told)
        return found

    def sampled(self, job: str, points: int) -> list[EventRow]:
        """Return about `points` metrics events spread evenly over the job, and its last one."""
        mine = (events.c.job == job, events.c.kind == Metrics.kind)
        with self._database.read() as connection:
            low, high = connection.execute(
                select(func.min(events.c.sequence), func.max(events.c.sequence)).where(*mine)
            ).one()
            if high is None:
                return []
            found = [row for start in _starts(low, high, points) if (row := _next(connection, mine, start)) is not None]
        return [row for index, row in enumerate(found) if index == 0 or row.sequence != found[index - 1].sequence]

    def thin(self, job: str, limit: int) -> int:
        """If a job has more than `limit` events, thin out the passing ones of its older half; return how many went.

        Each time only half of what was left of them stays, down to a thousandth; then the books grow, slowly. It is
        done piece by piece: no write waits for all of it.
        """
        with self._database.write() as connection:
            row = locked(connection, job)
            if row is None or row.num_events <= limit:
                return 0
            below, every = row.last_sequence - limit // 2, min(2 * row.thinned_to_every, _MAX_EVERY)
            if below - row.thinned_below < limit // 4:
                return 0  # what is left there lasts
            thinned = {"thinned_below": below, "thinned_to_every": every}
            connection.execute(update(jobs).where(jobs.c.id == job).values(thinned))
        return sum(self._thin_piece(job, first, min(below, first + _PIECE), every) for first in range(0, below, _PIECE))

    def _thin_piece(self, job: str, first: int, below: int, every: int) -> int:
        doomed = (
            events.c.job == job,
            events.c.sequence >= first,
            events.c.sequence < below,
            events.c.is_lasting.is_(False),
            events.c.sequence % every != 0,
        )
        with self._database.write() as connection:
            gone = connection.execute(delete(events).where(*doomed)).rowcount
            if gone:
                fewer = {"num_events": jobs.c.num_events - gone}
                connection.execute(update(jobs).where(jobs.c.id == job).values(fewer))
        return gone


def _last_version(connection: Connection, job: str) -> int:
    """Return the version of the last change of knobs that a job told; -1 if it told none."""
    query = select(events.c.knob_version).where(events.c.job == job, events.c.kind == KnobChange.kind)
    found = connection.execute(query.order_by(events.c.sequence.desc()).limit(1)).scalar_one_or_none()
    return -1 if found is None else int(found)


def _values(job: str, sequence: int, record: Event, source: int | None) -> dict[str, Any]:
    return {
        "job": job,
        "sequence": sequence,
        "source": source,
        "kind": record.kind,
        "step": record.step,
        "time_s": record.time_s,
        "worker": record.worker,
        "knob_version": record.knob_version,
        "is_lasting": _is_lasting(record),
        "data": data_of(record),
    }


def _is_lasting(event: Event) -> bool:
    """Return whether an event stays when old ones are thinned out: evaluations do, and kinds unknown here."""
    body = BY_KIND.get(event.kind)
    return body is None or not body.is_passing or any(map(is_evaluation, event.data))


def data_of(record: Event) -> str:
    """Return what an event carries as the books keep it."""
    return msgspec.json.encode(record.data).decode()


def _starts(low: int, high: int, points: int) -> Iterator[int]:
    """Yield evenly spaced numbers from `low` to `high`, both included."""
    stride = max(1, (high - low) // max(1, points - 1))
    yield from range(low, high, stride)
    yield high


def _next(connection: Connection, mine: tuple[Any, ...], start: int) -> EventRow | None:
    query = select(*_COLUMNS).where(*mine, events.c.sequence >= start).order_by(events.c.sequence).limit(1)
    row = connection.execute(query).one_or_none()
    return None if row is None else EventRow(*row)

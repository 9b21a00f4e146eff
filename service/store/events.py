"""What jobs told, numbered as they numbered it; of very long jobs the older metrics are thinned out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, delete, func, select, update

from raysync.ports import Record
from service.store.database import Database
from service.store.jobs import change
from service.store.tables import events, jobs

_PASSING = ("metrics", "decision", "reason")
"""Kinds of which a long job has too many; evaluations among them last."""
_MAX_EVERY = 1024


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
        self._insert = database.insert(events).on_conflict_do_nothing()

    def append(self, job: str, records: Sequence[Record], changes: Mapping[str, Any]) -> None:
        """Add events and change the job's row, both or neither; events that are there already are passed over."""
        with self._database.write() as connection:
            known = select(jobs.c.last_sequence).where(jobs.c.id == job).with_for_update()
            last = connection.execute(known).scalar()
            if last is None:
                return  # struck from the books meanwhile
            fresh = [record for record in records if record.sequence > last]
            if fresh:
                connection.execute(self._insert, [_values(job, record) for record in fresh])
                counts = {"last_sequence": fresh[-1].sequence, "num_events": jobs.c.num_events + len(fresh)}
                connection.execute(update(jobs).where(jobs.c.id == job).values(counts))
            change(connection, job, changes)

    def after(self, job: str, sequence: int, limit: int, kind: str | None = None) -> list[EventRow]:
        """Return up to `limit` events with larger numbers, of one kind or of all."""
        query = select(*_COLUMNS).where(events.c.job == job, events.c.sequence > sequence)
        if kind is not None:
            query = query.where(events.c.kind == kind)
        with self._database.read() as connection:
            return [EventRow(*row) for row in connection.execute(query.order_by(events.c.sequence).limit(limit))]

    def sampled(self, job: str, points: int) -> list[EventRow]:
        """Return about `points` metrics events spread evenly over the job, and its last one."""
        mine = (events.c.job == job, events.c.kind == "metrics")
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

        Each time only half of what was left of them stays, down to a thousandth; then the books grow, slowly.
        """
        columns = (jobs.c.num_events, jobs.c.last_sequence, jobs.c.thinned_below, jobs.c.thinned_to_every)
        with self._database.write() as connection:
            row = connection.execute(select(*columns).where(jobs.c.id == job).with_for_update()).one_or_none()
            if row is None or row.num_events <= limit:
                return 0
            below, every = row.last_sequence - limit // 2, min(2 * row.thinned_to_every, _MAX_EVERY)
            if below - row.thinned_below < limit // 4:
                return 0  # what is left there lasts
            gone = connection.execute(
                delete(events).where(
                    events.c.job == job,
                    events.c.sequence < below,
                    events.c.is_lasting.is_(False),
                    events.c.sequence % every != 0,
                )
            ).rowcount
            connection.execute(
                update(jobs)
                .where(jobs.c.id == job)
                .values(num_events=jobs.c.num_events - gone, thinned_below=below, thinned_to_every=every)
            )
        return gone


def _values(job: str, record: Record) -> dict[str, Any]:
    return {
        "job": job,
        "sequence": record.sequence,
        "kind": record.kind,
        "step": record.step,
        "time_s": record.time_s,
        "worker": record.worker,
        "knob_version": record.knob_version,
        "is_lasting": record.kind not in _PASSING or any(name.startswith("eval/") for name in record.data),
        "data": msgspec.json.encode(record.data).decode(),
    }


def _starts(low: int, high: int, points: int) -> Iterator[int]:
    """Yield evenly spaced numbers from `low` to `high`, both included."""
    stride = max(1, (high - low) // max(1, points - 1))
    yield from range(low, high, stride)
    yield high


def _next(connection: Connection, mine: tuple[Any, ...], start: int) -> EventRow | None:
    query = select(*_COLUMNS).where(*mine, events.c.sequence >= start).order_by(events.c.sequence).limit(1)
    row = connection.execute(query).one_or_none()
    return None if row is None else EventRow(*row)

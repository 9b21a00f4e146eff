"""Series of metrics for charts, read from blocks of events that were reduced when they came in.

A block of 64 events keeps, for every metric, the points that `service.store.points` lets stay; four blocks make one of
the next level. A chart of any length is so made of about as many blocks as it has points, and of the last few events as
they are. What workers told each for itself is kept from the second level on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import msgspec
from sqlalchemy import Connection, select, update

from service.store.database import Database
from service.store.events import EventRow
from service.store.points import KEPT, Key, Piece, Point, Samples, Sent, joined, reduced, thinned
from service.store.tables import blocks, events, jobs

SIZES = (64, 256, 1024, 4096, 16384)
_FACTOR = 4
UNIT = SIZES[1]
"""So many events are reduced at a time: four blocks of the first level and one of the second."""
_BASE = {False: 0, True: 1}
"""The first level there is: of the job's values, and of its workers'."""
_MAX_RAW = 8192
_UNITS_PER_WRITE = 4
_CARRY = ""
"""What a block has beside series: the bytes sent up to its end."""
_COLUMNS = tuple(events.c[name] for name in EventRow._fields)
_KINDS = ("metrics", "decision")

Body = dict[str, msgspec.Raw]


class Found(NamedTuple):
    """A series over a part of a job."""

    total: int
    """How many samples it has."""
    points: list[Point]


class Segment(NamedTuple):
    """Consecutive blocks of a level, or with level -1 events as they are, from one number up to below another."""

    level: int
    first: int
    end: int


class Series:
    """Reduces events, and reads series."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def roll(self, job: str) -> bool:
        """Reduce events of a job that are not yet; return whether there are more to reduce."""
        with self._database.write() as connection:
            mine = select(jobs.c.rolled, jobs.c.last_sequence).where(jobs.c.id == job).with_for_update()
            row = connection.execute(mine).one_or_none()
            if row is None:
                return False
            units = (row.last_sequence + 1 - row.rolled) // UNIT
            for first in range(row.rolled, row.rolled + UNIT * min(units, _UNITS_PER_WRITE), UNIT):
                self._roll_unit(connection, job, first)
            end = row.rolled + UNIT * min(units, _UNITS_PER_WRITE)
            connection.execute(update(jobs).where(jobs.c.id == job).values(rolled=end))
        return bool(units > _UNITS_PER_WRITE)

    def read(
        self, job: str, after: int, last: int, names: Collection[str], points: int, *, by_worker: bool
    ) -> dict[Key, Found]:
        """Return the series of these names from after one event to another, each with about so many points."""
        with self._database.read() as connection:
            rolled = connection.execute(select(jobs.c.rolled).where(jobs.c.id == job)).scalar_one_or_none() or 0
            found: dict[Key, list[Piece]] = {}
            for segment in plan(after + 1, last + 1, rolled, points, _BASE[by_worker]):
                if segment.level >= 0:
                    part = _from_blocks(connection, job, segment, names, by_worker)
                else:
                    part = _from_events(connection, job, segment, names, by_worker)
                for key, pieces in part:
                    found.setdefault(key, []).append(pieces)
        return {key: _found(pieces, points) for key, pieces in found.items()}

    def _roll_unit(self, connection: Connection, job: str, first: int) -> None:
        sent = _sent_before(connection, job, first)
        rows = _raw(connection, job, first, first + UNIT)
        of_workers = Samples(sent, by_worker=True)
        for start in range(first, first + UNIT, SIZES[0]):
            samples = Samples(sent, by_worker=False)
            for row in rows:
                if start <= row.sequence < start + SIZES[0]:
                    data = msgspec.json.decode(row.data)
                    samples.take(row, data)
                    of_workers.take(row, data)
            self._put(connection, job, 0, start // SIZES[0], _body(samples, sent), by_worker=False)
        if any(of_workers.items()):
            self._put(connection, job, 1, first // UNIT, _body(of_workers, sent), by_worker=True)
        for level in range(1, len(SIZES)):
            number, is_whole = divmod(first + UNIT, SIZES[level])
            if is_whole != 0:
                break
            for by_worker in (False, True):
                if level > _BASE[by_worker]:
                    self._put_joined(connection, job, level, number - 1, by_worker=by_worker)

    def _put_joined(self, connection: Connection, job: str, level: int, number: int, *, by_worker: bool) -> None:
        children = Segment(level - 1, number * _FACTOR, (number + 1) * _FACTOR)
        bodies = [body for _, body in _bodies(connection, job, children, by_worker)]
        names = dict.fromkeys(name for body in bodies for name in body if name != _CARRY)
        if bodies:
            body = {name: joined([_piece(body[name]) for body in bodies if name in body]) for name in names}
            packed = msgspec.msgpack.encode({**body, _CARRY: bodies[-1][_CARRY]})
            self._put(connection, job, level, number, packed, by_worker=by_worker)

    def _put(self, connection: Connection, job: str, level: int, number: int, body: bytes, *, by_worker: bool) -> None:
        values = {"job": job, "by_worker": by_worker, "level": level, "number": number, "body": body}
        connection.execute(self._database.insert(blocks).values(values).on_conflict_do_nothing())


def plan(first: int, end: int, rolled: int, points: int, base: int) -> list[Segment]:
    """Return of what a chart from one number up to below another is made: few events as they are, many as blocks of a
    level that has about as many as the chart has room for, with smaller ones and events at both ends.
    """
    room = max(1, points // KEPT)
    if end - first <= min(_MAX_RAW, room * SIZES[base]):
        return [Segment(-1, first, end)] if end > first else []
    top = max([level for level in range(base, len(SIZES)) if end - first >= room * SIZES[level]], default=base)
    found = list[Segment]()
    while first < end:
        level = next((n for n in range(top, base - 1, -1) if first % SIZES[n] == 0 and first + SIZES[n] <= rolled), -1)
        if level == top:
            last = rolled // SIZES[top]
        elif level >= 0:
            last = first // SIZES[level] + 1
        if level >= 0:
            found.append(Segment(level, first // SIZES[level], last))
            first = last * SIZES[level]
            continue
        edge = (first // SIZES[base] + 1) * SIZES[base]
        stop = edge if edge < rolled else end
        found.append(Segment(-1, first, stop))
        first = stop
    return found


def _found(pieces: Sequence[Piece], points: int) -> Found:
    all_points = [point for piece in pieces for point in piece.points]
    return Found(sum(piece.count for piece in pieces), thinned(all_points, points))


def _from_blocks(
    connection: Connection, job: str, segment: Segment, names: Collection[str], by_worker: bool
) -> Iterator[tuple[Key, Piece]]:
    wanted = {*names}
    for _, body in _bodies(connection, job, segment, by_worker):
        for text, raw in body.items():
            worker, _, name = text.partition(" ") if by_worker else ("", "", text)
            if name in wanted and text != _CARRY:
                yield Key(name, int(worker) if by_worker else None), _piece(raw)


def _from_events(
    connection: Connection, job: str, segment: Segment, names: Collection[str], by_worker: bool
) -> Iterator[tuple[Key, Piece]]:
    start = segment.first // SIZES[0] * SIZES[0]
    sent = _sent_before(connection, job, start)
    samples = Samples(sent, by_worker=by_worker, names=names)
    for row in _raw(connection, job, start, segment.end):
        samples.take(row, msgspec.json.decode(row.data), is_wanted=row.sequence >= segment.first)
    for key, points in samples.items():
        yield key, Piece(len(points), points)


def _sent_before(connection: Connection, job: str, first: int) -> Sent:
    """Return what a job had sent before an event that begins a block; what is not known in time is found a little
    before it.
    """
    here = (blocks.c.job == job, blocks.c.by_worker.is_(False), blocks.c.level == 0)
    query = select(blocks.c.number, blocks.c.body).where(*here, blocks.c.number < first // SIZES[0])
    row = connection.execute(query.order_by(blocks.c.number.desc()).limit(1)).one_or_none()
    number, sent = -1, Sent()
    if row is not None:
        number, sent = row.number, msgspec.msgpack.decode(_decoded(row.body)[_CARRY], type=Sent)
    start = (number + 1) * SIZES[0]
    if start < first:
        for event in _raw(connection, job, start, first, ("metrics",)):
            sent.take(msgspec.json.decode(event.data))
    return sent


def _raw(connection: Connection, job: str, first: int, end: int, kinds: Sequence[str] = _KINDS) -> list[EventRow]:
    here = (events.c.job == job, events.c.sequence >= first, events.c.sequence < end, events.c.kind.in_(kinds))
    rows = connection.execute(select(*_COLUMNS).where(*here).order_by(events.c.sequence))
    return [EventRow(*row) for row in rows]


def _bodies(connection: Connection, job: str, segment: Segment, by_worker: bool) -> list[tuple[int, Body]]:
    here = (blocks.c.job == job, blocks.c.by_worker.is_(by_worker), blocks.c.level == segment.level)
    part = (blocks.c.number >= segment.first, blocks.c.number < segment.end)
    query = select(blocks.c.number, blocks.c.body).where(*here, *part).order_by(blocks.c.number)
    return [(row[0], _decoded(row[1])) for row in connection.execute(query)]


def _body(samples: Samples, sent: Sent) -> bytes:
    named = {
        key.name if key.worker is None else f"{key.worker} {key.name}": Piece(len(points), reduced(points))
        for key, points in samples.items()
    }
    return msgspec.msgpack.encode({**named, _CARRY: sent})


_body_decoder = msgspec.msgpack.Decoder(Body)
_piece_decoder = msgspec.msgpack.Decoder(Piece)


def _decoded(body: bytes) -> Body:
    return _body_decoder.decode(body)


def _piece(raw: msgspec.Raw) -> Piece:
    return _piece_decoder.decode(raw)

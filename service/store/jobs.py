"""Jobs on the books: what was asked for, how it goes, and which service process looks after it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, Row, and_, delete, func, insert, or_, select, update

from raysync.control.states import JobState
from service.errors import KeyReused, NotFound
from service.store.database import Database
from service.store.tables import idempotency_keys, jobs

_JSON = ("pip", "metrics", "knobs", "runs")
_HEAVY = ("spec", "runs")
_LIVE = tuple(state.value for state in JobState if not state.is_terminal)


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the books have it."""

    id: str
    name: str
    owner: str
    state: str = "PENDING"
    reason: str = "it has just been submitted"
    spec: str = ""
    """As JSON; empty in listings."""
    strategy: str
    package: str | None = None
    pip: tuple[str, ...] = ()
    resume_from: str | None = None
    on_cluster_loss: str = "fail"
    path: str
    created_s: float
    started_s: float | None = None
    ended_s: float | None = None
    step: int = 0
    steps: int
    workers: int = 0
    metrics: dict[str, float | None] = {}
    """The last value of each."""
    knobs: dict[str, Any]
    """As they are, or will be at the next decision."""
    knob_version: int = 0
    knob_version_in_force: int = 0
    runs: dict[str, Any] = {}
    """What really runs; empty in listings."""
    launches: int = 0
    launched_on: str | None = None
    stop: str | None = None
    stop_force_after_s: float | None = None
    last_sequence: int = -1
    num_events: int = 0
    thinned_below: int = 0
    """Of events with smaller numbers only those that last, and every so manieth other one, are kept."""
    thinned_to_every: int = 1
    lease_owner: str | None = None
    lease_until_s: float | None = None

    @property
    def is_terminal(self) -> bool:
        """Whether it has ended."""
        return JobState(self.state).is_terminal


class Key(NamedTuple):
    """An Idempotency-Key and the digest of the body it came with."""

    key: str
    digest: str


class Jobs:
    """Reads and writes job rows."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, row: JobRow, key: Key | None = None) -> tuple[JobRow, bool]:
        """Enter a job; with a key that came before, return the job it made then and True."""
        with self._database.write() as connection:
            if key is not None:
                self._database.hold(connection, f"{row.owner} {key.key}")
                found = _made_before(connection, row.owner, key)
                if found is not None:
                    return found, True
            connection.execute(insert(jobs).values(_packed(msgspec.structs.asdict(row))))
            if key is not None:
                values = {"owner": row.owner, "job": row.id, "created_s": row.created_s, **key._asdict()}
                connection.execute(insert(idempotency_keys).values(values))
        return row, False

    def get(self, id: str) -> JobRow:
        """Return a job, or raise `NotFound`."""
        with self._database.read() as connection:
            return _get(connection, id)

    def page(self, limit: int, before: tuple[float, str] | None = None, state: str | None = None) -> list[JobRow]:
        """Return up to `limit` jobs, newest first, older than the one `before` stands for."""
        columns = [column for column in jobs.c if column.name not in _HEAVY]
        query = select(*columns).order_by(jobs.c.created_s.desc(), jobs.c.id.desc()).limit(limit)
        if state is not None:
            query = query.where(jobs.c.state == state)
        if before is not None:
            created_s, id = before
            same = and_(jobs.c.created_s == created_s, jobs.c.id < id)
            query = query.where(jobs.c.created_s <= created_s, or_(jobs.c.created_s < created_s, same))
        with self._database.read() as connection:
            return [_unpacked(row) for row in connection.execute(query)]

    def count_by_state(self) -> dict[str, int]:
        """Return how many jobs are in each state."""
        query = select(jobs.c.state, func.count()).group_by(jobs.c.state)
        with self._database.read() as connection:
            return {row[0]: row[1] for row in connection.execute(query)}

    def live(self) -> list[JobRow]:
        """Return the jobs that have not ended, without what is heavy."""
        columns = [column for column in jobs.c if column.name not in _HEAVY]
        with self._database.read() as connection:
            return [_unpacked(row) for row in connection.execute(select(*columns).where(jobs.c.state.in_(_LIVE)))]

    def lease_owners(self) -> set[str]:
        """Return who looks after live jobs."""
        query = select(jobs.c.lease_owner).distinct().where(jobs.c.lease_owner.is_not(None), jobs.c.state.in_(_LIVE))
        with self._database.read() as connection:
            return {row[0] for row in connection.execute(query)}

    def lease(self, owner: str, now_s: float, until_s: float, dead: Collection[str] = ()) -> set[str]:
        """Take or keep every live job nobody else looks after; return the jobs that are this owner's now."""
        gone = or_(jobs.c.lease_owner.is_(None), jobs.c.lease_until_s < now_s, jobs.c.lease_owner.in_(dead))
        free = or_(jobs.c.lease_owner == owner, gone)
        mine = select(jobs.c.id).where(jobs.c.lease_owner == owner, jobs.c.state.in_(_LIVE))
        with self._database.write() as connection:
            connection.execute(
                update(jobs).where(jobs.c.state.in_(_LIVE), free).values(lease_owner=owner, lease_until_s=until_s)
            )
            return {row[0] for row in connection.execute(mine)}

    def release(self, owner: str) -> None:
        """Give up what this owner looks after: it is going away in good order."""
        with self._database.write() as connection:
            connection.execute(
                update(jobs).where(jobs.c.lease_owner == owner).values(lease_owner=None, lease_until_s=None)
            )

    def change(self, id: str, changes: Mapping[str, Any]) -> JobRow:
        """Change columns of a job that has not ended; return it as it is then."""
        with self._database.write() as connection:
            change(connection, id, changes)
            return _get(connection, id)

    def count_launch(self, id: str) -> int:
        """Note that the job is about to be started; return how often that makes."""
        with self._database.write() as connection:
            connection.execute(update(jobs).where(jobs.c.id == id).values(launches=jobs.c.launches + 1))
            return _get(connection, id).launches

    def turned(self, id: str, version: int, values: Mapping[str, Any]) -> None:
        """Note the knobs a change will make, unless later ones are known."""
        with self._database.write() as connection:
            connection.execute(
                update(jobs)
                .where(jobs.c.id == id, jobs.c.knob_version < version)
                .values(knob_version=version, knobs=json.dumps(dict(values)))
            )

    def ask_stop(self, id: str, reason: str, force_after_s: float) -> JobRow:
        """Note that somebody wants the job to end; the first reason stays, the shorter bound holds."""
        with self._database.write() as connection:
            row = _get(connection, id)
            if not row.is_terminal:
                bounds = [bound for bound in (row.stop_force_after_s, force_after_s) if bound is not None]
                change(connection, id, {"stop": row.stop or reason, "stop_force_after_s": min(bounds)})
            return _get(connection, id)

    def remove(self, id: str) -> None:
        """Strike a job from the books, with all it told."""
        with self._database.write() as connection:
            connection.execute(delete(jobs).where(jobs.c.id == id))


def change(connection: Connection, id: str, changes: Mapping[str, Any]) -> None:
    """Change columns of a job that has not ended, inside a transaction."""
    if changes:
        connection.execute(update(jobs).where(jobs.c.id == id, jobs.c.state.in_(_LIVE)).values(_packed(changes)))


def _get(connection: Connection, id: str) -> JobRow:
    row = connection.execute(select(jobs).where(jobs.c.id == id)).one_or_none()
    if row is None:
        raise NotFound("job", id)
    return _unpacked(row)


def _made_before(connection: Connection, owner: str, key: Key) -> JobRow | None:
    keys = idempotency_keys
    found = connection.execute(select(keys).where(keys.c.owner == owner, keys.c.key == key.key)).one_or_none()
    if found is None:
        return None
    if found.digest != key.digest:
        raise KeyReused(key.key)
    return _get(connection, found.job)


def _packed(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: json.dumps(value) if name in _JSON else _clean(value) for name, value in values.items()}


def _clean(value: Any) -> Any:
    """Return text without the one character a database may refuse; a traceback may hold it."""
    return value.replace("\x00", "") if isinstance(value, str) else value


def _unpacked(row: Row[Any]) -> JobRow:
    values = {str(name): json.loads(value) if name in _JSON else value for name, value in row._mapping.items()}
    return msgspec.convert(values, JobRow)

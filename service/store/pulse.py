"""What has changed of many jobs, asked often: a few plain columns of each, and whole rows only of those that did."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import case, or_, select

from service.store.database import Database
from service.store.job_row import LIVE, JobRow, light_rows
from service.store.tables import jobs

MAX_LIVE = 500
"""So many jobs that have not ended are watched together, those that wait in line last."""


class Beat(NamedTuple):
    """What tells that a job has changed."""

    id: str
    last_sequence: int
    state: str
    headline: str
    knob_version: int
    admitted_s: float | None
    launches: int


_COLUMNS = [jobs.c[name] for name in Beat._fields]


class Pulse:
    """Reads beats."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def beats(self, ids: Collection[str] = ()) -> dict[str, Beat]:
        """Return jobs that have not ended, the newest first, and those with these ids."""
        there = jobs.c.removed_s.is_(None)
        waits_last = case((jobs.c.state == "PENDING", 1), else_=0)
        live = select(*_COLUMNS).where(there, jobs.c.state.in_(LIVE))
        live = live.order_by(waits_last, jobs.c.created_s.desc(), jobs.c.id).limit(MAX_LIVE)
        with self._database.read() as connection:
            found = {row.id: Beat(*row) for row in connection.execute(live)}
            missing = [id for id in ids if id not in found]
            for first in range(0, len(missing), MAX_LIVE):
                some = select(*_COLUMNS).where(there, jobs.c.id.in_(missing[first : first + MAX_LIVE]))
                found |= {row.id: Beat(*row) for row in connection.execute(some)}
        return found

    def rows(self, ids: Collection[str]) -> dict[str, JobRow]:
        """Return jobs without what is heavy; those that are gone are missing."""
        with self._database.read() as connection:
            found = light_rows(connection, jobs.c.removed_s.is_(None), jobs.c.id.in_(ids))
        return {row.id: row for row in found}

    def since(self, created_s: float) -> list[JobRow]:
        """Return jobs that were submitted after a moment, or have not ended: the newest, as many as are watched."""
        which = (jobs.c.removed_s.is_(None), or_(jobs.c.created_s >= created_s, jobs.c.state.in_(LIVE)))
        with self._database.read() as connection:
            rows = light_rows(connection, *which)
        return sorted(rows, key=lambda row: row.created_s)[-MAX_LIVE:]

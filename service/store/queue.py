"""The queue of jobs that have not been started, and the transaction that lets them start."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, func, or_, select, update

from raysync.control.admit import Queued, admit
from raysync.reason import shortened
from service.store.database import Database
from service.store.job_row import LIVE
from service.store.tables import jobs

_IS_QUEUED = (jobs.c.state == "PENDING", jobs.c.admitted_s.is_(None), jobs.c.stop.is_(None))
_IS_LIVE = (jobs.c.state.in_(LIVE), jobs.c.admitted_s.is_not(None))
_ORDER = (jobs.c.priority.desc(), jobs.c.created_s, jobs.c.id)


class Queue:
    """Orders and admits jobs; several services on one database come to one order."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def admit(self, max_live: int, address: str, now_s: float) -> tuple[str, ...]:
        """Let jobs start that may, and say of the others why they wait; return those that may start now."""
        with self._database.read() as connection:
            waiting, num_live = _first(connection, 1), _num_live(connection, address)
        if not waiting:
            return ()
        if num_live >= max_live:
            self.explain(admit(waiting, num_live, max_live).reason)
            return ()
        with self._database.write() as connection:
            self._database.hold(connection, "admission")
            admission = admit(_first(connection, max_live), _num_live(connection, address), max_live)
            connection.execute(update(jobs).where(jobs.c.id.in_(admission.ids)).values(admitted_s=now_s))
            _explain(connection, admission.reason)
        return admission.ids

    def explain(self, reason: str) -> None:
        """Say why all of them wait."""
        with self._database.read() as connection:
            is_said = connection.execute(select(jobs.c.id).where(*_IS_QUEUED, jobs.c.reason != reason).limit(1)).first()
        if is_said is not None:
            with self._database.write() as connection:
                _explain(connection, reason)

    def positions(self, ids: Collection[str]) -> dict[str, int]:
        """Return where in the queue these jobs are, counted from 1; those that are in none are left out."""
        if not ids:
            return {}
        place = func.row_number().over(order_by=_ORDER).label("place")
        line = select(jobs.c.id, place).where(*_IS_QUEUED).subquery()
        with self._database.read() as connection:
            found = connection.execute(select(line.c.id, line.c.place).where(line.c.id.in_(ids)))
            return {row.id: row.place for row in found}

    def count(self) -> int:
        """Return how many jobs wait."""
        with self._database.read() as connection:
            return connection.execute(select(func.count()).select_from(jobs).where(*_IS_QUEUED)).scalar_one()


def _first(connection: Connection, limit: int) -> list[Queued]:
    columns = (jobs.c.id, jobs.c.priority, jobs.c.created_s)
    rows = connection.execute(select(*columns).where(*_IS_QUEUED).order_by(*_ORDER).limit(limit))
    return [Queued(*row) for row in rows]


def _num_live(connection: Connection, address: str) -> int:
    """Return how many jobs live on the cluster at this address, or are about to."""
    here = or_(jobs.c.launched_address.is_(None), jobs.c.launched_address == address)
    return connection.execute(select(func.count()).select_from(jobs).where(*_IS_LIVE, here)).scalar_one()


def _explain(connection: Connection, reason: str) -> None:
    values = {"reason": reason, "headline": shortened(reason)}
    connection.execute(update(jobs).where(*_IS_QUEUED, jobs.c.reason != reason).values(values))

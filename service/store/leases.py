"""Which service process looks after which job: a lease on jobs, kept alive by one row per process."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, or_, select, update

from service.store.database import Database
from service.store.job_row import LIVE, JobRow, change, light_rows
from service.store.tables import jobs, services

_FORGOTTEN_S = 3600.0
_HELD = "leases"
"""Who asks which services are alive while another one enters itself would not see it, and take what it has taken."""


class Leases:
    """Takes, keeps and gives up jobs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def owners(self) -> set[str]:
        """Return who looks after live jobs."""
        query = select(jobs.c.lease_owner).distinct().where(jobs.c.lease_owner.is_not(None), jobs.c.state.in_(LIVE))
        with self._database.read() as connection:
            return {row[0] for row in connection.execute(query)}

    def take(
        self,
        owner: str,
        now_s: float,
        until_s: float,
        dead: Collection[str] = (),
        *,
        cluster: str | None,
        address: str,
    ) -> set[str]:
        """Take or keep every live job that is this owner's to look after; return them.

        A service that reaches no cluster keeps only what needs none, so that one that does may have the others; and no
        service judges about a job on another address's cluster.
        """
        fit = _fit(cluster, address)
        values = {"id": owner, "until_s": until_s}
        mine = select(jobs.c.id).where(jobs.c.lease_owner == owner, jobs.c.state.in_(LIVE))
        with self._database.write() as connection:
            self._database.hold(connection, _HELD)
            insert = self._database.insert(services).values(values)
            connection.execute(insert.on_conflict_do_update(index_elements=["id"], set_=values))
            connection.execute(delete(services).where(services.c.until_s < now_s - _FORGOTTEN_S))
            held = {row[0] for row in connection.execute(mine)}
            kept = {row[0] for row in connection.execute(mine.where(fit))} if held else set()
            if held - kept:
                _give_up(connection, owner, jobs.c.id.in_(held - kept))
            free = _free(now_s, dead)
            connection.execute(update(jobs).where(jobs.c.state.in_(LIVE), fit, free).values(lease_owner=owner))
            return {row[0] for row in connection.execute(mine)}

    def unattended(self, now_s: float, dead: Collection[str] = ()) -> list[JobRow]:
        """Return the jobs that have been started, have not ended, and that no service looks after."""
        with self._database.read() as connection:
            return light_rows(connection, jobs.c.state.in_(LIVE), jobs.c.launches > 0, _free(now_s, dead))

    def note(self, id: str, changes: Mapping[str, Any], now_s: float, dead: Collection[str] = ()) -> None:
        """Change columns of a job that no service looks after; one that has taken it meanwhile knows better."""
        with self._database.write() as connection:
            self._database.hold(connection, _HELD)
            free = select(jobs.c.id).where(jobs.c.id == id, _free(now_s, dead)).with_for_update()
            if connection.execute(free).one_or_none() is not None:
                change(connection, id, changes)

    def release(self, owner: str, wait_s: float | None = None) -> None:
        """Give up what this owner looks after: it is going away in good order."""
        with self._database.write(wait_s=wait_s) as connection:
            connection.execute(delete(services).where(services.c.id == owner))
            _give_up(connection, owner)


def _give_up(connection: Any, owner: str, *which: ColumnElement[bool]) -> None:
    connection.execute(update(jobs).where(jobs.c.lease_owner == owner, *which).values(lease_owner=None))


def _free(now_s: float, dead: Collection[str]) -> ColumnElement[bool]:
    alive = select(services.c.id).where(services.c.until_s >= now_s, services.c.id.not_in(dead))
    return or_(jobs.c.lease_owner.is_(None), jobs.c.lease_owner.not_in(alive))


def _fit(cluster: str | None, address: str) -> ColumnElement[bool]:
    is_asked_to_stop = and_(jobs.c.launches == 0, jobs.c.stop.is_not(None))
    if cluster is None:
        return is_asked_to_stop
    is_here = or_(jobs.c.launched_address.is_(None), jobs.c.launched_address == address, jobs.c.launched_on == cluster)
    may_start = and_(jobs.c.launches == 0, jobs.c.admitted_s.is_not(None))
    return or_(is_asked_to_stop, may_start, and_(jobs.c.launches > 0, is_here))

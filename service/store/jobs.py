"""Jobs on the books: what was asked for, and how it goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from sqlalchemy import insert, update

from service.store.database import Database
from service.store.job_filter import EVERY, NEWEST, JobFilter, sorted_by
from service.store.job_row import LIVE, JobRow, change, get_job, light, light_rows, packed, unpacked
from service.store.keys import Key, made_before, note, note_removed
from service.store.tables import jobs, labels


class Jobs:
    """Reads and writes job rows."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, row: JobRow, key: Key | None = None) -> tuple[JobRow, bool]:
        """Enter a job; with a key that came before, return the job it made then and True."""
        with self._database.write(durable=True) as connection:
            if key is not None:
                self._database.hold(connection, f"{key.token} {key.key}")
                found = made_before(connection, key, row.created_s)
                if found is not None:
                    return found, True
            connection.execute(insert(jobs).values(packed(msgspec.structs.asdict(row))))
            if row.labels:
                pairs = [{"job": row.id, "key": key, "value": value} for key, value in row.labels.items()]
                connection.execute(insert(labels), pairs)
            if key is not None:
                note(connection, key, row)
        return row, False

    def made_before(self, key: Key, now_s: float) -> JobRow | None:
        """Return the job a key has made; raise if it came with another body, or the job was removed within a day."""
        with self._database.read() as connection:
            return made_before(connection, key, now_s)

    def get(self, id: str) -> JobRow:
        """Return a job, or raise `NotFound`."""
        with self._database.read() as connection:
            return get_job(connection, id)

    def page(
        self,
        limit: int,
        after: tuple[Any, str] | None = None,
        which: JobFilter = EVERY,
        sort: str = NEWEST,
    ) -> list[JobRow]:
        """Return up to `limit` jobs in an order, newest first by default, from behind what `after` stands for."""
        query = sorted_by(light(*which.conditions()), sort, after).limit(limit)
        with self._database.read() as connection:
            return [unpacked(row) for row in connection.execute(query)]

    def live(self) -> list[JobRow]:
        """Return the jobs that have not ended, without what is heavy."""
        with self._database.read() as connection:
            return light_rows(connection, jobs.c.state.in_(LIVE))

    def change(self, id: str, changes: Mapping[str, Any]) -> JobRow:
        """Change columns of a job that has not ended; return it as it is then."""
        with self._database.write() as connection:
            change(connection, id, changes)
            return get_job(connection, id)

    def count_launch(self, id: str, address: str) -> int:
        """Note that the job is about to be started on the cluster at an address; return how often that makes."""
        values = {"launches": jobs.c.launches + 1, "launched_address": address}
        with self._database.write(durable=True) as connection:
            connection.execute(update(jobs).where(jobs.c.id == id).values(values))
            return get_job(connection, id).launches

    def launched(self, id: str, cluster: str, knob_version: int) -> JobRow:
        """Note where the job was started, unless its knobs were turned since the version it was started with."""
        with self._database.write() as connection:
            connection.execute(
                update(jobs).where(jobs.c.id == id, jobs.c.knob_version == knob_version).values(launched_on=cluster)
            )
            return get_job(connection, id)

    def uncount_launch(self, id: str) -> None:
        """Note that no cluster answered when the job was to be started; it may have heard, so one start stays."""
        with self._database.write() as connection:
            again = (jobs.c.id == id, jobs.c.launches > 1)
            connection.execute(update(jobs).where(*again).values(launches=jobs.c.launches - 1))

    def move(self, old_address: str, new_address: str) -> int:
        """Have jobs of the cluster at one address looked for at another; return how many."""
        mine = (jobs.c.launched_address == old_address, jobs.c.state.in_(LIVE))
        with self._database.write(durable=True) as connection:
            return connection.execute(update(jobs).where(*mine).values(launched_address=new_address)).rowcount

    def ask_stop(self, id: str, reason: str, force_after_s: float) -> JobRow:
        """Note that the job is to end; the first reason stays, the shorter bound holds."""
        with self._database.write(durable=True) as connection:
            row = get_job(connection, id, locked=True)
            if not row.is_terminal:
                bounds = [bound for bound in (row.stop_force_after_s, force_after_s) if bound is not None]
                change(connection, id, {"stop": row.stop or reason, "stop_force_after_s": min(bounds)})
            return get_job(connection, id)

    def remove(self, id: str, now_s: float) -> None:
        """Strike a job from the books: no listing has it from now on, and `service.store.removal` clears it away."""
        with self._database.write(durable=True) as connection:
            note_removed(connection, id, now_s)
            connection.execute(update(jobs).where(jobs.c.id == id).values(removed_s=now_s))

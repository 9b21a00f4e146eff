"""Idempotency-Keys: which job a key has made, so that the same request makes one job however often it is sent."""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import Connection, delete, insert, select, update

from service.errors import KeyOfRemoved, KeyReused
from service.store.job_row import JobRow, unpacked
from service.store.tables import jobs
from service.store.tables import submission_keys as keys

KEPT_S = 86_400.0
"""So long a key outlives its job."""


class Key(NamedTuple):
    """An Idempotency-Key, whose it is, and the digest of the body it came with."""

    token: str
    """The id of the token: two may have one name."""
    key: str
    digest: str


def made_before(connection: Connection, key: Key, now_s: float) -> JobRow | None:
    """Return the job a key has made; raise if it came with another body, or the job was removed within a day."""
    found = connection.execute(select(keys).where(*_is(key))).one_or_none()
    if found is None:
        return None
    there = (jobs.c.id == found.job, jobs.c.removed_s.is_(None))
    row = connection.execute(select(jobs).where(*there)).one_or_none()
    if row is None and now_s > (found.removed_s or found.created_s) + KEPT_S:
        return None
    if found.digest not in ("", key.digest):  # of a key from before digests were of the body itself, none is known
        raise KeyReused(key.key)
    if row is None:
        raise KeyOfRemoved(key.key, found.job)
    return unpacked(row)


def note(connection: Connection, key: Key, row: JobRow) -> None:
    """Note which job a key makes; one it made long ago is forgotten."""
    connection.execute(delete(keys).where(*_is(key)))
    connection.execute(insert(keys).values({"job": row.id, "created_s": row.created_s, **key._asdict()}))


def note_removed(connection: Connection, id: str, now_s: float) -> None:
    """Note that a job was removed: its keys make no other one for a day, and then may be used again."""
    connection.execute(delete(keys).where(keys.c.removed_s < now_s - KEPT_S))
    connection.execute(update(keys).where(keys.c.job == id).values(removed_s=now_s))


def _is(key: Key) -> tuple[Any, ...]:
    return (keys.c.token == key.token, keys.c.key == key.key)

"""Clearing away jobs that were removed: piece by piece, so that no write waits for a job of a million events."""

from __future__ import annotations

from sqlalchemy import delete, select

from service.store.database import Database
from service.store.tables import blocks, events, jobs

BATCH = 2000
"""So many events go in one transaction: some ten milliseconds."""
_BLOCKS = 500


class Removal:
    """Clears away what `Jobs.remove` has struck."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def pending(self) -> list[str]:
        """Return the jobs that are still to be cleared away."""
        with self._database.read() as connection:
            return [row[0] for row in connection.execute(select(jobs.c.id).where(jobs.c.removed_s.is_not(None)))]

    def clear_some(self, id: str) -> bool:
        """Clear away a piece of a removed job; return whether something of it is left."""
        with self._database.write() as connection:
            mine = select(events.c.sequence).where(events.c.job == id).order_by(events.c.sequence)
            last = connection.execute(mine.offset(BATCH - 1).limit(1)).scalar()
            if last is not None:
                connection.execute(delete(events).where(events.c.job == id, events.c.sequence <= last))
                return True
            numbers = select(blocks.c.number).where(blocks.c.job == id).order_by(blocks.c.number)
            number = connection.execute(numbers.offset(_BLOCKS - 1).limit(1)).scalar()
            if number is not None:
                connection.execute(delete(blocks).where(blocks.c.job == id, blocks.c.number <= number))
                return True
            connection.execute(delete(jobs).where(jobs.c.id == id, jobs.c.removed_s.is_not(None)))
        return False

"""A database that does not answer: which errors mean that, in one sentence, and how long the next one waits."""

from __future__ import annotations

import sqlite3
from typing import Any

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

WAIT_S = 3.0
"""No thread waits longer for a lock or a connection: a request is answered, and tried again by who sent it."""
SHORT_S = 0.2
"""While it is known not to answer, threads do not queue up for it."""

_SQLITE = {
    sqlite3.SQLITE_BUSY: "another connection holds its lock",
    sqlite3.SQLITE_LOCKED: "another connection holds its lock",
    sqlite3.SQLITE_FULL: "its disk is full",
    sqlite3.SQLITE_IOERR: "its disk cannot be read or written",
    sqlite3.SQLITE_CANTOPEN: "its file cannot be opened",
    sqlite3.SQLITE_READONLY: "its file cannot be written",
}
_POSTGRESQL = {
    "55P03": "another connection holds a lock",
    "57014": "it took too long",
    "53100": "its disk is full",
    "53300": "it has too many connections",
    "40P01": "two transactions waited for each other",
    "40001": "two transactions were in each other's way",
    "25006": "it only reads now",
}


def problem_of(error: Exception) -> str | None:
    """Return what is the matter with the database, if it is the database and not the statement; nothing secret."""
    if isinstance(error, PoolTimeout):
        return "all connections to it are busy"
    if not isinstance(error, DBAPIError):
        return None
    cause: Any = error.orig
    if isinstance(cause, sqlite3.Error):
        return _SQLITE.get(getattr(cause, "sqlite_errorcode", 0) & 0xFF)
    state = getattr(cause, "sqlstate", None)
    if state in _POSTGRESQL:
        return _POSTGRESQL[state]
    is_away = error.connection_invalidated or isinstance(error, OperationalError | InterfaceError)
    return "it cannot be reached" if is_away else None


class Patience:
    """How long to wait for the lock of a database: shortly, once it is known to be held for long."""

    def __init__(self) -> None:
        self.in_trouble = False

    @property
    def wait_s(self) -> float:
        """How long the next transaction waits."""
        return SHORT_S if self.in_trouble else WAIT_S

    def answered(self) -> None:
        """A transaction has gone through."""
        self.in_trouble = False

    def gave_up(self) -> None:
        """A transaction has waited in vain."""
        self.in_trouble = True

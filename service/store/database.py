"""One database: connections, transactions, and a schema brought up to date by migrations."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Table, create_engine, event, make_url, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL
from sqlalchemy.exc import OperationalError

from service.errors import DatabaseError

_BUSY_MS = 15_000


class Database:
    """Reads are transactions of their own; writes happen one after the other."""

    def __init__(self, url: str) -> None:
        self.url = _with_driver(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        if self.is_sqlite and self.url.database:
            Path(self.url.database).parent.mkdir(parents=True, exist_ok=True)
        self._engine = self._make()
        self._writing = threading.Lock() if self.is_sqlite else contextlib.nullcontext()

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        """Give a connection that only reads."""
        with self._engine.connect().execution_options(only_reads=True) as connection:
            yield connection

    @contextlib.contextmanager
    def write(self) -> Iterator[Connection]:
        """Give a connection inside a transaction that is committed at the end, or undone by an exception."""
        with self._writing, self._engine.begin() as connection:
            yield connection

    def insert(self, table: Table) -> Any:
        """Return an insertion that can be told what to do on a conflict."""
        dialect: Any = sqlite if self.is_sqlite else postgresql
        return dialect.insert(table)

    def hold(self, connection: Connection, name: str) -> None:
        """Let one transaction at a time go on that holds this name; SQLite's writers are one at a time anyway."""
        if not self.is_sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(hashtext(:name))"), {"name": name})

    def migrate(self) -> None:
        """Bring the schema up to date; several processes may try at once."""
        from alembic import command
        from alembic.config import Config

        config = Config()
        config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
        try:
            with self.write() as connection:
                self.hold(connection, "migrations")
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
        except OperationalError as error:
            where = self.url.render_as_string(hide_password=True)
            problem = str(error.orig).strip().splitlines()[0]
            raise DatabaseError(where, f"it cannot be used ({problem}); is it running, and is the URL right?") from None

    def check(self) -> None:
        """Raise if the database does not answer."""
        with self.read() as connection:
            connection.execute(text("SELECT 1"))

    def close(self) -> None:
        """Let go of all connections."""
        self._engine.dispose()

    def _make(self) -> Engine:
        if not self.is_sqlite:
            return create_engine(self.url, pool_size=10, max_overflow=20, pool_pre_ping=True)
        engine = create_engine(self.url, pool_size=40, max_overflow=20, connect_args={"check_same_thread": False})
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine


def _with_driver(text_url: str) -> URL:
    try:
        url = make_url(text_url)
    except Exception as error:
        raise DatabaseError(text_url.partition("://")[0], "it is not a database URL") from error
    if url.get_backend_name() == "sqlite":
        if not url.database or url.database == ":memory:":
            raise DatabaseError("sqlite", "it needs a file: sqlite:///path")
        return url.set(database=str(Path(url.database).expanduser()))
    if url.get_backend_name() != "postgresql":
        raise DatabaseError(url.get_backend_name(), "only sqlite:///path and postgresql://... are known")
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        raise DatabaseError("postgresql", "its driver is missing: pip install 'raysync[postgres]'") from error
    return url.set(drivername="postgresql+psycopg")


def _prepare_sqlite(connection: Any, record: Any) -> None:
    connection.isolation_level = None  # transactions begin where `_begin_sqlite` says
    cursor = connection.cursor()
    for pragma in (
        "journal_mode=WAL",
        "synchronous=NORMAL",
        f"busy_timeout={_BUSY_MS}",
        "foreign_keys=ON",
        "cache_size=-65536",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that starts by reading could not become one that writes while somebody else does.
    only_reads = connection.get_execution_options().get("only_reads")
    connection.exec_driver_sql("BEGIN" if only_reads else "BEGIN IMMEDIATE")

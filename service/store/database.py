"""One database: connections, transactions, and a schema brought up to date by migrations."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Table, create_engine, event, make_url, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from service.errors import DatabaseError, DatabaseUnavailable
from service.store.tables import services
from service.store.trouble import WAIT_S, Patience, problem_of

_STATEMENT_S = 15.0
_MIGRATE_S = 30.0
_WAL_BYTES = 64 << 20


class Database:
    """Reads are transactions of their own; writes happen one after the other.

    No call waits for ever: a database that is locked, full or away raises `DatabaseUnavailable` within seconds.
    """

    def __init__(self, url: str) -> None:
        self.url = _with_driver(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        if self.is_sqlite and self.url.database:
            Path(self.url.database).parent.mkdir(parents=True, exist_ok=True)
            Path(self.url.database).touch(mode=0o600)  # SQLite would let all users read what it makes
        self._engine = self._make()
        self._writing = threading.Lock()
        self._reads, self._writes = Patience(), Patience()

    @contextlib.contextmanager
    def read(self, isolation_level: str | None = None) -> Iterator[Connection]:
        """Give a connection that only reads."""
        level = {} if self.is_sqlite or isolation_level is None else {"isolation_level": isolation_level}
        with self._told(self._reads), self._engine.connect() as bare:
            connection = bare.execution_options(only_reads=True, wait_s=self._reads.wait_s, **level)
            self._hurry(connection, self._reads)
            yield connection
        self._reads.answered()

    @contextlib.contextmanager
    def write(self, *, durable: bool = False, wait_s: float | None = None) -> Iterator[Connection]:
        """Give a connection inside a transaction that is committed at the end, or undone by an exception.

        A durable one survives a power cut as soon as this returns; the others may be lost with the last second.
        """
        bound_s = self._writes.wait_s if wait_s is None else wait_s
        with self._told(self._writes), self._one_writer(bound_s), self._engine.connect() as bare:
            connection = bare.execution_options(durable=durable, wait_s=bound_s)
            with connection.begin():
                self._hurry(connection, self._writes)
                yield connection
        self._writes.answered()

    @contextlib.contextmanager
    def _one_writer(self, wait_s: float) -> Iterator[None]:
        """SQLite has one writer at a time: threads of this process wait here, in a line with a bound."""
        if self.is_sqlite and not self._writing.acquire(timeout=wait_s):
            self._writes.gave_up()
            raise DatabaseUnavailable("other writes of this service hold it")
        try:
            yield
        finally:
            if self.is_sqlite:
                self._writing.release()

    @contextlib.contextmanager
    def _told(self, patience: Patience) -> Iterator[None]:
        """Raise what means that the database does not answer as one error, without what was sent to it."""
        try:
            yield
        except (DBAPIError, PoolTimeout) as error:
            problem = problem_of(error)
            if problem is None:
                raise
            patience.gave_up()
            raise DatabaseUnavailable(problem) from None

    def _hurry(self, connection: Connection, patience: Patience) -> None:
        """PostgreSQL waits as long as its connection says; in trouble, shortly."""
        if patience.in_trouble and not self.is_sqlite:
            connection.execute(text(f"SET LOCAL lock_timeout = {int(1000 * patience.wait_s)}"))

    def insert(self, table: Table) -> Any:
        """Return an insertion that can be told what to do on a conflict."""
        dialect: Any = sqlite if self.is_sqlite else postgresql
        return dialect.insert(table)

    def hold(self, connection: Connection, name: str) -> None:
        """Let one transaction at a time go on that holds this name; SQLite's writers are one at a time anyway."""
        if not self.is_sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(hashtext(:name))"), {"name": name})

    def migrate(self, revision: str = "head") -> None:
        """Bring the schema up to date; several processes may try at once."""
        from alembic import command
        from alembic.config import Config
        from alembic.util import CommandError

        config = Config()
        config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
        try:
            with self.write(durable=True, wait_s=_MIGRATE_S) as connection:
                if not self.is_sqlite:
                    connection.execute(text(f"SET LOCAL lock_timeout = {int(1000 * _MIGRATE_S)}"))
                    connection.execute(text("SET LOCAL statement_timeout = 0"))
                self.hold(connection, "migrations")
                config.attributes["connection"] = connection
                command.upgrade(config, revision)
        except CommandError as error:
            where = self.url.render_as_string(hide_password=True)
            problem = "it was made by another raysync, probably a newer one"
            remedy = "run that one, or give another --database or --data"
            raise DatabaseError(where, f"{problem} ({error}): {remedy}") from None
        except DatabaseUnavailable as error:
            where = self.url.render_as_string(hide_password=True)
            raise DatabaseError(where, f"{error.problem}; is it running, and is the URL right?") from None

    def probe(self, wait_s: float) -> None:
        """Raise unless something can be written now."""
        with self.write(wait_s=wait_s) as connection:
            if not self.is_sqlite:
                connection.execute(text(f"SET LOCAL lock_timeout = {int(1000 * wait_s)}"))
            values = {"id": "probe", "until_s": time.time()}
            insert = self.insert(services).values(values)
            connection.execute(insert.on_conflict_do_update(index_elements=["id"], set_=values))

    def tidy(self, wait_s: float = 0.2) -> None:
        """Keep SQLite's log short: what stays open for reading all the time would let it grow without end."""
        if not self.is_sqlite or not self.url.database:
            return
        log = Path(f"{self.url.database}-wal")
        if log.exists() and log.stat().st_size > _WAL_BYTES:
            with contextlib.closing(self._engine.raw_connection()) as connection:
                cursor = connection.cursor()
                cursor.execute(f"PRAGMA busy_timeout={int(1000 * wait_s)}")
                cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                cursor.close()
                connection.info.pop("busy_timeout", None)

    def close(self) -> None:
        """Let go of all connections."""
        self._engine.dispose()

    def _make(self) -> Engine:
        kept: dict[str, Any] = {"pool_timeout": WAIT_S, "hide_parameters": True}
        if not self.is_sqlite:
            bounds = {"connect_timeout": 5, "tcp_user_timeout": int(1000 * _STATEMENT_S)}
            engine = create_engine(
                self.url, pool_size=10, max_overflow=20, pool_pre_ping=True, connect_args=bounds, **kept
            )
            event.listen(engine, "connect", _prepare_postgresql)
            return engine
        engine = create_engine(
            self.url, pool_size=40, max_overflow=60, connect_args={"check_same_thread": False}, **kept
        )
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
        f"busy_timeout={int(1000 * WAIT_S)}",
        "journal_mode=WAL",
        "synchronous=NORMAL",
        f"journal_size_limit={_WAL_BYTES}",
        "foreign_keys=ON",
        "cache_size=-65536",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _prepare_postgresql(connection: Any, record: Any) -> None:
    connection.autocommit = True
    cursor = connection.cursor()
    for name, bound_s in (("lock_timeout", WAIT_S), ("statement_timeout", _STATEMENT_S)):
        cursor.execute(f"SET {name} = {int(1000 * bound_s)}")
    cursor.close()
    connection.autocommit = False


def _begin_sqlite(connection: Connection) -> None:
    options = connection.get_execution_options()
    wanted = {
        "busy_timeout": int(1000 * options.get("wait_s", WAIT_S)),
        "synchronous": "FULL" if options.get("durable") else "NORMAL",
    }
    for name, value in wanted.items():
        if connection.info.get(name) != value:
            connection.exec_driver_sql(f"PRAGMA {name}={value}")
            connection.info[name] = value
    # A transaction that starts by reading could not become one that writes while another one does.
    connection.exec_driver_sql("BEGIN" if options.get("only_reads") else "BEGIN IMMEDIATE")

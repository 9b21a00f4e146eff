"""A database that is locked or full: really locked, really full. What needs none goes on, and nothing is lost."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from sqlalchemy import text

from raysync.spec import parse_spec
from service.client import ApiError, Client
from service.errors import DatabaseUnavailable
from service.security.auth import Authenticator, Role, create_token
from service.server.serve import still_running
from service.store import Store
from tests.service.conftest import SPEC, tokens_for, until
from tests.service.still_runtime import StillRuntime
from tests.service.test_client import Server, started
from tests.service.test_store import books, postgres, row

__all__ = ["books", "postgres"]

Locked = Callable[[Store], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def locked(store: Store) -> Iterator[None]:
    """Hold the whole database, as a backup or a migration does."""
    other: Any
    if store.database.is_sqlite:
        other = sqlite3.connect(str(store.database.url.database), timeout=10, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
    else:
        import psycopg

        plain = store.database.url.set(drivername="postgresql")
        other = psycopg.connect(plain.render_as_string(hide_password=False))
        other.execute("LOCK TABLE jobs, events, tokens, services, totals IN ACCESS EXCLUSIVE MODE")
    try:
        yield
    finally:
        other.rollback()
        other.close()


@contextlib.contextmanager
def full(store: Store) -> Iterator[None]:
    """Fill the disk the database is on to its last byte."""
    filler = Path(str(store.database.url.database)).parent / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 4096)
    try:
        yield
    finally:
        filler.unlink()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of eight megabytes."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"this machine lets nobody mount a file system: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


class Shop:
    """A real server over a database that a test takes away."""

    def __init__(self, folder: Path, database: str, take_away: Locked) -> None:
        self.runtime = StillRuntime()
        self.server = Server(folder, self.runtime, database=database)
        self.token = tokens_for(self.server.store)["admin"]
        self.client = Client(self.server.url, self.token)
        self.impatient = Client(self.server.url, self.token, tries=1)
        self.away = lambda: take_away(self.server.store)

    def health_s(self) -> float:
        """Ask for health; return how long that took."""
        sent_s = time.perf_counter()
        assert httpx.get(f"{self.server.url}/healthz").status_code == 200
        return time.perf_counter() - sent_s


@pytest.fixture(params=["locked sqlite", "full sqlite", "locked postgresql"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    how, _, kind = request.param.partition(" ")
    folder = request.getfixturevalue("small_disk") if how == "full" else tmp_path
    database = f"sqlite:///{folder}/books/raysync.db"
    if kind == "postgresql":
        server = request.getfixturevalue("postgres")
        name = f"t{time.monotonic_ns()}"
        admin = Store(server.format(name="postgres"))
        with admin.database._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        admin.close()
        database = server.format(name=name)
    shop = Shop(tmp_path, database, full if how == "full" else locked)
    yield shop
    shop.client.close()
    shop.impatient.close()
    shop.server.stop()


def refused(work: Callable[[], Any]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        work()
    return caught.value


def test_while_the_database_does_not_answer_the_service_does(shop: Shop) -> None:
    id = started(shop.client, shop.runtime)
    ready = f"{shop.server.url}/readyz"
    until(lambda: httpx.get(ready).status_code == 200)
    with shop.away():
        for step in range(500):
            shop.runtime.tell(id, "metrics", {"train/loss": 1.0}, step=step)
        deadline_s, worst_s = time.monotonic() + 5.0, 0.0
        with ThreadPoolExecutor(60) as crowd:
            asked = [crowd.submit(refused, lambda: shop.impatient.submit(parse_spec(SPEC))) for _ in range(60)]
            while time.monotonic() < deadline_s:
                worst_s = max(worst_s, shop.health_s())
                time.sleep(0.02)
            problems = [future.result(20) for future in asked]
        assert {(found.status, found.type) for found in problems} == {(503, "urn:raysync:database-unavailable")}
        assert worst_s < 1.0, "health waits for nobody"
        answer = httpx.post(
            f"{shop.server.url}/api/v1/jobs", json={"spec": SPEC}, headers={"Authorization": f"Bearer {shop.token}"}
        )
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")
        assert httpx.get(ready).status_code == 503
        assert "cannot be written" in httpx.get(ready).json()["database"]
        if shop.server.store.database.is_sqlite:  # who reads waits for no writer there
            sent_s = time.perf_counter()
            assert shop.impatient.job(id).id == id
            assert shop.impatient.turn(id, delta=0.7).version == 1
            assert shop.impatient.turn(id, expected_version=1, delta=0.8).version == 2
            assert time.perf_counter() - sent_s < 3.0, "not one of them waits for the lock"
        else:
            assert refused(lambda: shop.impatient.job(id)).status == 503
    until(lambda: httpx.get(ready).status_code == 200)
    until(lambda: shop.client.job(id).step == 499)
    shop.runtime.enter(id, "SUCCEEDED")
    until(lambda: shop.client.job(id).is_terminal)
    numbers = [event.sequence for event in shop.client.events(id, limit=2000).items]
    assert numbers == list(range(len(shop.runtime.folders[id].records))), "no event is lost"
    if shop.server.store.database.is_sqlite:
        assert shop.client.knobs(id).version == 2, "noted when it could be"


def test_clients_try_again_until_the_database_answers(shop: Shop) -> None:
    id = started(shop.client, shop.runtime)
    found: list[Any] = []

    def ask() -> None:
        found.append(shop.client.submit(parse_spec(SPEC)).id)
        found.append(shop.client.turn(id, delta=0.6).version)

    with shop.away():
        asking = threading.Thread(target=ask)
        asking.start()
        time.sleep(4.0)
        assert found == []
    asking.join(30)
    assert len(found) == 2
    assert shop.client.job(found[0]).id == found[0]


def test_a_service_ends_while_the_database_does_not_answer(shop: Shop) -> None:
    id = started(shop.client, shop.runtime)
    with shop.away():
        for step in range(100):
            shop.runtime.tell(id, "metrics", {"train/loss": 1.0}, step=step)
        time.sleep(1.0)
        began_s = time.monotonic()
        shop.server._server.should_exit = True
        shop.server._thread.join(20)
        assert not shop.server._thread.is_alive()
        assert time.monotonic() - began_s < 12
        assert shop.server.parts.manager.left_running == [id], "asked of the cluster, not of the books"


@pytest.mark.parametrize(
    ("on_cluster", "in_books", "count"),
    [([], ["x"], 0), ([], None, 0), (["a"], None, 1), (["a"], [], 1), (None, ["x", "y"], 2), (None, [], 0),
     (None, None, None)],
)  # fmt: skip
def test_what_runs_on_is_what_the_cluster_says(
    on_cluster: list[str] | None, in_books: list[str] | None, count: int | None
) -> None:
    assert still_running(on_cluster, in_books) == count


def test_who_authenticates_writes_nothing(books: Store) -> None:
    token = create_token(books.tokens, "me", Role.VIEWER)
    guard = Authenticator(books.tokens)
    if books.database.is_sqlite:
        with locked(books):
            began_s = time.monotonic()
            assert guard.authenticate(token, "a").name == "me"
            assert time.monotonic() - began_s < 0.5
    else:
        guard.authenticate(token, "a")
    assert books.tokens.all()[0].used_s is None
    books.tokens.used(guard.take_uses())
    assert books.tokens.all()[0].used_s is not None
    assert guard.take_uses() == {}


def test_no_thread_waits_for_long_and_the_next_ones_hardly(books: Store) -> None:
    books.jobs.add(row())
    took_s = []
    with locked(books):
        for _ in range(3):
            began_s = time.monotonic()
            with pytest.raises(DatabaseUnavailable, match="lock"):
                books.jobs.change("job-1", {"reason": "x"})
            took_s.append(time.monotonic() - began_s)
    assert took_s[0] < 4.0
    assert max(took_s[1:]) < 1.0
    assert books.jobs.change("job-1", {"reason": "x"}).reason == "x"


def test_an_error_names_no_bound_values(books: Store) -> None:
    books.jobs.add(row())
    with pytest.raises(Exception, match=r"(?i)unique") as caught:
        books.jobs.add(row(reason="top secret"))
    assert "top secret" not in str(caught.value)

"""The books, on both databases."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import inspect, text

from raysync.events import Event
from service.errors import DatabaseError, KeyOfRemoved, KeyReused, NotFound
from service.store import JobRow, Store, database
from service.store.keys import KEPT_S, Key
from service.store.packages import PackageRow
from service.store.tables import metadata

HERE: dict[str, Any] = {"cluster": "first", "address": "here:6379"}
POSTGRES = shutil.which("pg_ctl") or next(map(str, Path("/usr/lib/postgresql").glob("*/bin/pg_ctl")), None)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """A PostgreSQL server of the tests' own, on a socket in a folder of its own."""
    if POSTGRES is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    binaries = Path(os.path.realpath(POSTGRES)).parent
    folder = Path(tempfile.mkdtemp(prefix="rs-pg-", dir="/tmp"))  # the server's user must get there
    who: dict[str, Any] = {}
    if os.geteuid() == 0:  # it refuses to run as root
        user = pwd.getpwnam("postgres")
        os.chown(folder, user.pw_uid, user.pw_gid)
        who = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    run = lambda *command: subprocess.run(  # noqa: E731
        [str(part) for part in command], check=True, capture_output=True, timeout=60, cwd=folder, **who
    )
    run(binaries / "initdb", "-D", folder / "data", "-U", "raysync", "--auth=trust", "--no-sync")
    options = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off"
    run(binaries / "pg_ctl", "-D", folder / "data", "-l", folder / "log", "-o", options, "-w", "start")
    try:
        yield f"postgresql://raysync@/{{name}}?host={folder}"
    finally:
        run(binaries / "pg_ctl", "-D", folder / "data", "-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def books(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "sqlite":
        store = Store(f"sqlite:///{tmp_path}/raysync.db")
    else:
        server = request.getfixturevalue("postgres")
        admin = Store(server.format(name="postgres"))
        name = f"t{time.monotonic_ns()}"
        with admin.database._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        admin.close()
        store = Store(server.format(name=name))
    store.database.migrate()
    yield store
    store.close()


def row(id: str = "job-1", **fields: Any) -> JobRow:
    defaults = {"name": "job", "owner": "me", "strategy": "bsp", "path": f"/jobs/{id}", "steps": 10, "spec": "{}"}
    return JobRow(**{"id": id, "created_s": 1000.0, "knobs": {"delta": 0.3}, **defaults, **fields})


def records(first: int, count: int, kind: str = "metrics", **data: Any) -> list[Event]:
    return [
        Event(sequence=n, kind=kind, time_s=n / 10, step=n, data={"train/loss": 0.5, **data})
        for n in range(first, first + count)
    ]


def test_migrations_make_what_the_tables_say(books: Store) -> None:
    books.database.migrate()  # again: nothing happens
    with books.database.read() as connection:
        found = inspect(connection)
        assert {*metadata.tables} <= {*found.get_table_names()}
        for name, table in metadata.tables.items():
            columns = {column["name"]: column["nullable"] for column in found.get_columns(name)}
            assert columns == {column.name: bool(column.nullable) for column in table.columns}, name
            indexes = {index["name"] for index in found.get_indexes(name)}
            assert {index.name for index in table.indexes} <= indexes


def test_a_database_from_before_is_brought_up_to_date(books: Store) -> None:
    """Of a service before there was a line: what runs counts as let in, what waits does not, numbers go on."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(database.__file__).parent / "migrations"))
    columns = "id, name, owner, reason, spec, strategy, pip, on_cluster_loss, path, created_s, step, steps, workers"
    more = "metrics, knobs, knob_version, knob_version_in_force, runs, num_events, thinned_below, thinned_to_every"
    values = "'', 'n', 'o', '', '{}', 'bsp', '[]', 'fail', '/x', 5.0, 0, 9, 0, '{}', '{}', 0, 0, '{}', 8, 0, 1"
    with books.database.write() as connection:
        for table in reversed(metadata.sorted_tables):
            connection.execute(text(f"DROP TABLE {table.name}"))
        connection.execute(text("DROP TABLE alembic_version"))
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        for id, state, launches in (("waits", "PENDING", 0), ("runs", "RUNNING", 1), ("ended", "STOPPED", 0)):
            connection.execute(
                text(
                    f"INSERT INTO jobs ({columns}, {more}, state, launches, last_sequence, lease_owner, lease_until_s) "
                    f"VALUES ('{id}'{values[2:]}, '{state}', {launches}, 7, 'old', 1e12)"
                )
            )
        for n in range(8):
            event = f"('runs', {n}, 'metrics', {n}, 0.1, NULL, 0, FALSE, '{{}}')"
            connection.execute(text(f"INSERT INTO events VALUES {event}"))
    books.database.migrate()
    assert {job.id: job.admitted_s for job in books.jobs.page(9)} == {"waits": None, "runs": 5.0, "ended": 5.0}
    assert books.queue.positions(["waits", "runs"]) == {"waits": 1}
    assert books.leases.take("me", 1.0, 2.0, **HERE) == {"runs"}
    books.events.append("runs", records(8, 2), {})
    assert books.jobs.get("runs").last_sequence == books.jobs.get("runs").source_sequence == 9
    assert {*books.events.known_after("runs", 5)} == {6, 7, 8, 9}, "old events have the number they had"


def test_a_job_is_what_was_entered(books: Store) -> None:
    entered = row(metrics={"a": None, "b": 1.5}, pip=("x==1",), knobs={"delta": float("inf"), "pause": False})
    books.jobs.add(entered)
    assert books.jobs.get("job-1") == entered
    assert [found.spec for found in books.jobs.page(10)] == [""], "listings carry nothing heavy"
    with pytest.raises(NotFound):
        books.jobs.get("nix")
    books.jobs.change("job-1", {"state": "RUNNING", "metrics": {"c": 2.0}})
    assert books.jobs.get("job-1").metrics == {"c": 2.0}
    books.jobs.change("job-1", {"state": "SUCCEEDED"})
    books.jobs.change("job-1", {"state": "RUNNING", "reason": "too late"})
    assert books.jobs.get("job-1").state == "SUCCEEDED", "what has ended stays ended"


def test_keys_hold_per_token_and_outlive_their_job_for_a_day(books: Store) -> None:
    first, _ = books.jobs.add(row("a"), Key("t1", "k", "d1"))
    assert books.jobs.add(row("b"), Key("t1", "k", "d1")) == (first, True)
    assert books.jobs.made_before(Key("t1", "k", "d1"), 1000.0) == first
    with pytest.raises(KeyReused):
        books.jobs.add(row("c"), Key("t1", "k", "d2"))
    assert books.jobs.add(row("d"), Key("t2", "k", "d2"))[1] is False, "another token of the same owner"
    books.jobs.remove("a", 5000.0)
    for moment_s in (5000.0, 5000.0 + KEPT_S):
        with pytest.raises(KeyOfRemoved, match="job a"):
            books.jobs.made_before(Key("t1", "k", "d1"), moment_s)
        with pytest.raises(KeyOfRemoved):
            books.jobs.add(row("e", created_s=moment_s), Key("t1", "k", "d1"))
    assert books.jobs.made_before(Key("t1", "k", "d9"), 5001.0 + KEPT_S) is None
    assert books.jobs.add(row("f", created_s=5001.0 + KEPT_S), Key("t1", "k", "d9"))[1] is False
    books.jobs.remove("d", 9000.0 + KEPT_S)
    assert books.jobs.made_before(Key("t1", "k", "d9"), 9000.0) is not None, "of others only what is old goes"


def test_keys_move_with_the_schema(tmp_path: Path) -> None:
    """From the first schema: a key whose owner's name is one token's stays good for any body, an unclear one goes."""
    store = Store(f"sqlite:///{tmp_path}/raysync.db")
    store.database.migrate("0001")
    spec, long = "{}", "worker 1 failed:\nTraceback (most recent call last)\n" + "  deep\n" * 1000 + "ValueError: no"
    with store.database.write() as connection:
        for id, name in (("t1", "anna"), ("t2", "twice"), ("t3", "twice")):
            values = f"'{id}', '{name}', 'admin', 'd', 1"
            connection.execute(text(f"INSERT INTO tokens (id, name, role, digest, created_s) VALUES ({values})"))
        columns = "id, name, owner, state, reason, spec, strategy, pip, on_cluster_loss, path, created_s, step, steps, "
        columns += "workers, metrics, knobs, knob_version, knob_version_in_force, runs, launches, last_sequence, "
        columns += "num_events, thinned_below, thinned_to_every"
        values = (
            "'j', 'j', 'anna', 'FAILED', :reason, :spec, 'bsp', '[]', 'fail', '/j', 1, 1, 1, 0, :empty, :empty, 0, 0, "
        )
        values += ":empty, 1, 0, 0, 0, 1"
        found = {"reason": long, "spec": spec, "empty": "{}"}
        connection.execute(text(f"INSERT INTO jobs ({columns}) VALUES ({values})"), found)
        for owner in ("anna", "twice"):
            connection.execute(text(f"INSERT INTO idempotency_keys VALUES ('{owner}', 'k', 'd', 'j', 1)"))
    store.database.migrate()
    made = store.jobs.made_before(Key("t1", "k", "whatever"), 2.0)
    assert made is not None
    assert made.reason == long
    assert store.jobs.page(1)[0].reason == "worker 1 failed: ValueError: no"
    assert store.jobs.made_before(Key("t2", "k", "d"), 2.0) is None
    store.close()


def test_pages_of_jobs_of_one_moment(books: Store) -> None:
    for n in range(7):
        books.jobs.add(row(f"job-{n}", created_s=1000.0 + n // 3))
    found: list[str] = []
    before = None
    while page := books.jobs.page(2, before):
        found += [job.id for job in page]
        before = (page[-1].created_s, page[-1].id)
    assert found == ["job-6", "job-5", "job-4", "job-3", "job-2", "job-1", "job-0"]


def test_events_are_appended_once_with_the_row(books: Store) -> None:
    books.jobs.add(row())
    books.events.append("job-1", records(0, 5), {"step": 4})
    books.events.append("job-1", records(3, 4), {"step": 6})  # two of them again
    assert [event.sequence for event in books.events.after("job-1", -1, 100)] == list(range(7))
    found = books.jobs.get("job-1")
    assert (found.last_sequence, found.num_events, found.step) == (6, 7, 6)
    books.events.append("job-1", records(7, 1, kind="knobs"), {})
    assert [event.sequence for event in books.events.after("job-1", -1, 100, "knobs")] == [7]
    assert msgspec.json.decode(books.events.after("job-1", 6, 1)[0].data) == {"train/loss": 0.5}
    books.events.append("gone", records(0, 1), {})
    books.jobs.remove("job-1", 1.0)
    assert not books.removal.clear_some("job-1")
    assert books.events.after("job-1", -1, 100) == []


def test_leases_keep_two_services_apart(books: Store) -> None:
    for n in range(4):
        books.jobs.add(row(f"job-{n}", state="SUCCEEDED" if n == 3 else "RUNNING", admitted_s=1.0))
    for n in range(20):  # each time two services that nobody knows yet
        owners, gates = (f"me-{n}", f"you-{n}"), threading.Barrier(2)

        def take(owner: str, gates: threading.Barrier = gates) -> set[str]:
            gates.wait(10)
            return books.leases.take(owner, 100.0, 115.0, **HERE)

        with ThreadPoolExecutor(2) as pool:
            mine, yours = pool.map(take, owners)
        assert mine | yours == {"job-0", "job-1", "job-2"}
        assert not mine & yours
        for owner in owners if n < 19 else ():
            books.leases.release(owner)
    assert books.leases.take("late", 110.0, 125.0, **HERE) == set()
    taken = books.leases.take("late", 116.0, 131.0, **HERE)
    assert taken == {"job-0", "job-1", "job-2"}, "a dead service's jobs are taken over"
    books.leases.release("late")
    assert books.leases.take("next", 117.0, 132.0, **HERE) == {"job-0", "job-1", "job-2"}


def test_the_first_stop_gives_the_reason_and_the_shortest_bound_holds(books: Store) -> None:
    books.jobs.add(row())
    books.jobs.ask_stop("job-1", "first", 60.0)
    found = books.jobs.ask_stop("job-1", "second", 5.0)
    assert (found.stop, found.stop_force_after_s) == ("first", 5.0)
    assert books.jobs.ask_stop("job-1", "third", 30.0).stop_force_after_s == 5.0


def test_knobs_never_go_back(books: Store) -> None:
    books.jobs.add(row())
    books.knobs.turned("job-1", 2, 0, {"delta": 0.2})
    books.knobs.turned("job-1", 1, 0, {"delta": 0.1})  # heard of later
    books.jobs.change("job-1", {"knob_version": 1, "knobs": {}, "knob_version_in_force": 1, "reason": "x"})
    assert (books.jobs.get("job-1").knob_version, books.jobs.get("job-1").knobs) == (2, {"delta": 0.2})


def test_packages_go_when_nobody_has_sent_or_used_them_for_long(books: Store) -> None:
    for id, sent_s in (("used", 10.0), ("unused", 10.0), ("young", 30.0), ("sent-again", 10.0)):
        books.packages.add(PackageRow(id, "me", sent_s, 3, ("mine",)), b"zip")
    books.packages.add(PackageRow("sent-again", "you", 40.0, 3, ("mine",)), b"zip")
    books.jobs.add(row(package="used"))
    assert books.packages.clear(before_s=20.0) == ["unused"]
    assert [books.packages.get(id).owner for id in ("used", "young", "sent-again")] == ["me"] * 3
    books.jobs.remove("job-1", 1.0)
    assert not books.removal.clear_some("job-1")
    assert books.packages.clear(before_s=20.0) == ["used"]


def test_long_jobs_are_thinned_and_keep_what_lasts(books: Store) -> None:
    books.jobs.add(row())
    for first in range(0, 2000, 100):
        batch = records(first, 99) + records(first + 99, 1, **{"eval/loss": 1.0})
        books.events.append("job-1", batch, {})
    books.events.append("job-1", records(2000, 1, kind="state"), {})
    assert books.events.thin("job-1", 5000) == 0
    gone = books.events.thin("job-1", 1000)
    job = books.jobs.get("job-1")
    kept = [event.sequence for event in books.events.after("job-1", -1, 10_000)]
    assert len(kept) == job.num_events == 2001 - gone
    assert job.thinned_below == 1500
    assert [n for n in kept if n >= 1500] == list(range(1500, 2001)), "the newer half is whole"
    assert {n for n in kept if n < 1500} == {n for n in range(1500) if n % 2 == 0 or n % 100 == 99}
    assert books.events.thin("job-1", 1000) == 0, "nothing new to thin"
    for first in range(2001, 32_001, 1000):
        books.events.append("job-1", records(first, 1000), {})
        books.events.thin("job-1", 1000)
    job = books.jobs.get("job-1")
    assert job.thinned_to_every == 1024, "it does not grow for ever"
    assert job.num_events == len(books.events.after("job-1", -1, 100_000)) < 3000


def test_a_job_of_a_million_events_is_paged_and_sampled_without_loading_it(
    tmp_path: Path, empty_database: Path
) -> None:
    shutil.copy(empty_database, tmp_path / "raysync.db")
    store = Store(f"sqlite:///{tmp_path}/raysync.db")
    store.jobs.add(row(last_sequence=999_999, num_events=1_000_000))
    with store.database.write() as connection:
        connection.exec_driver_sql(
            "WITH RECURSIVE n(x) AS (SELECT 0 UNION ALL SELECT x + 1 FROM n WHERE x < 999999) INSERT INTO events "
            "SELECT 'job-1', x, CASE x % 2 WHEN 0 THEN 'metrics' ELSE 'decision' END, x / 2, x / 100.0, NULL, 0, 0, "
            "'{\"train/loss\": 0.5}', x FROM n"
        )
    tracemalloc.start()
    took_s = []
    for after in (-1, 500_000, 999_000):
        started_s = time.perf_counter()
        page = store.events.after("job-1", after, 500)
        metrics = store.events.after("job-1", after, 400, "metrics")
        took_s.append(time.perf_counter() - started_s)
        assert page[0].sequence == after + 1
        assert all(event.kind == "metrics" for event in metrics)
    started_s = time.perf_counter()
    points = store.events.sampled("job-1", 500)
    sampled_s = time.perf_counter() - started_s
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 490 <= len(points) <= 520
    assert points[-1].sequence == 999_998
    assert max(took_s) < 0.5
    assert sampled_s < 2.0
    assert peak_bytes < 5 << 20
    started_s = time.perf_counter()
    assert [job.num_events for job in store.jobs.page(10)] == [1_000_000]
    assert time.perf_counter() - started_s < 0.5
    store.close()


def test_a_database_that_is_not_there_is_said_without_its_password() -> None:
    store = Store("postgresql://me:geheim@127.0.0.1:1/x")
    with pytest.raises(DatabaseError, match="is it running") as caught:
        store.database.migrate()
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize("url", ["mysql://x/y", "nonsense", "sqlite://", ""])
def test_other_databases_are_refused(url: str) -> None:
    with pytest.raises(DatabaseError):
        Store(url)

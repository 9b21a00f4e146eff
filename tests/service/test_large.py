"""Large jobs and long lives: removed and thinned without holding up others, a log that stays short, nothing lost."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from service.store import Store
from tests.service.conftest import World, until
from tests.service.test_store import books, postgres, records, row

__all__ = ["books", "postgres"]

MANY = 300_000


def filled(store: Store, id: str, count: int, **fields: object) -> None:
    """Enter a job with very many events."""
    store.jobs.add(row(id, last_sequence=count - 1, num_events=count, source_sequence=count - 1, **fields))
    with store.database.write(wait_s=60) as connection:
        if not store.database.is_sqlite:
            connection.execute(text("SET LOCAL statement_timeout = 0"))
        numbers = (
            f"WITH RECURSIVE n(x) AS (SELECT 0 UNION ALL SELECT x + 1 FROM n WHERE x < {count - 1})"
            if store.database.is_sqlite
            else f"WITH n AS (SELECT generate_series(0, {count - 1}) AS x)"
        )
        columns = "job, sequence, kind, step, time_s, worker, knob_version, is_lasting, data, source"
        connection.execute(
            text(
                f"{numbers} INSERT INTO events ({columns}) SELECT '{id}', x, 'metrics', x, x / 100.0, NULL, 0, FALSE, "
                "'{}', x FROM n"
            )
        )


@contextlib.contextmanager
def others_writing(store: Store) -> Iterator[list[float]]:
    """Have somebody write all the time; gives how long each write took."""
    took_s, done = list[float](), threading.Event()

    def write() -> None:
        while not done.is_set():
            began_s = time.perf_counter()
            store.jobs.change("small", {"reason": str(began_s)})
            took_s.append(time.perf_counter() - began_s)
            time.sleep(0.002)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield took_s
    finally:
        done.set()
        writer.join(20)


def test_removing_a_large_job_holds_nobody_up(books: Store) -> None:
    filled(books, "large", MANY, state="SUCCEEDED")
    books.jobs.add(row("small"))
    with others_writing(books) as took_s:
        books.jobs.remove("large", 1.0)
        assert [job.id for job in books.jobs.page(10)] == ["small"], "gone from view at once"
        while books.removal.clear_some("large"):
            time.sleep(0.001)
    assert max(took_s) < 0.4
    assert len(took_s) > 50
    assert books.removal.pending() == []
    assert books.events.after("large", -1, 10) == []


def test_thinning_a_large_job_holds_nobody_up(books: Store) -> None:
    filled(books, "large", MANY, state="RUNNING")
    books.jobs.add(row("small"))
    with others_writing(books) as took_s:
        gone = books.events.thin("large", MANY // 3)
    assert max(took_s) < 0.4
    job = books.jobs.get("large")
    assert gone == job.thinned_below // 2
    assert job.num_events == MANY - gone


def test_a_removal_that_was_broken_off_goes_on(world: World) -> None:
    store = world.parts.store
    filled(store, "large", 10_000, state="SUCCEEDED")
    store.jobs.remove("large", 1.0)  # by a service that was killed then
    assert world.call("GET", "/api/v1/jobs/large").status_code == 404
    id = world.finished()
    assert world.call("DELETE", f"/api/v1/jobs/{id}").status_code == 204
    assert world.call("GET", f"/api/v1/jobs/{id}").status_code == 404
    assert world.call("DELETE", f"/api/v1/jobs/{id}").status_code == 404
    until(lambda: store.removal.pending() == [])
    assert store.events.after("large", -1, 10) == []


def test_the_log_of_the_database_is_shortened_after_a_long_reader(
    tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound_bytes = 1 << 20
    monkeypatch.setattr("service.store.database._WAL_BYTES", bound_bytes, raising=False)
    shutil.copy(empty_database, tmp_path / "raysync.db")
    store, log = Store(f"sqlite:///{tmp_path}/raysync.db"), tmp_path / "raysync.db-wal"
    store.jobs.add(row())
    with store.database.read() as reader:
        reader.execute(text("SELECT count(*) FROM jobs")).scalar()
        for first in range(0, 20_000, 1000):
            store.events.append("job-1", records(first, 1000), {})
        assert log.stat().st_size > 2 * bound_bytes, "nothing can be taken out of it while somebody reads from before"
        store.database.tidy()
    store.database.tidy()
    store.events.append("job-1", records(20_000, 1), {})
    assert log.stat().st_size <= bound_bytes
    store.close()


SYNCS = """
import os, sys
from service.store import Store
from tests.service.test_store import records, row
store = Store("sqlite:///" + sys.argv[1])
store.jobs.add(row("before"))
for work in (
    lambda: store.jobs.add(row("job")),
    lambda: store.jobs.ask_stop("job", "enough", 1.0),
    lambda: store.events.append("job", records(0, 3), {}),
):
    os.getppid()  # a mark in the trace
    work()
os.getppid()
"""


def test_what_was_acknowledged_is_on_the_disk(tmp_path: Path, empty_database: Path) -> None:
    """A power cut keeps only what was synced: seen in the calls the process makes."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    shutil.copy(empty_database, tmp_path / "raysync.db")
    trace = tmp_path / "trace"
    command = ["strace", "-f", "-o", trace, "-e", "trace=fsync,fdatasync,getppid", sys.executable, "-c", SYNCS]
    done = subprocess.run([*command, tmp_path / "raysync.db"], capture_output=True, text=True, timeout=60)
    if "ptrace" in done.stderr or "Operation not permitted" in done.stderr:
        pytest.skip("this machine lets no process be traced")
    assert done.returncode == 0, done.stderr
    lines = trace.read_text().splitlines()
    marks = [number for number, line in enumerate(lines) if "getppid" in line][-4:]
    spans = itertools.pairwise(marks)
    synced = [sum("sync(" in line for line in lines[first:last]) for first, last in spans]
    assert synced[0] >= 1, "a submission is on the disk before it is acknowledged"
    assert synced[1] >= 1, "so is a stop"
    assert synced[2] == 0, "events come again from the job's journal"

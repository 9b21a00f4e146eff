"""A thousand live jobs: does the gateway stay alive, are leases kept, do events keep up, how busy is the database?

A real service and a real gateway process; the jobs behind it train nothing (`tests.bench.still_gateway`).

    python -m tests.bench live_jobs
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx2

from service.client import Client
from service.store import Store
from tests.bench.record import record

JOBS, EVENTS_PER_S, MEASURED_S = 1000, 0.5, 30.0
SPEC = {
    "name": "steady",
    "task": {"kind": "digits"},
    "strategy": {"kind": "selsync", "delta": 0.3},
    "budget": {"steps": 10**6},
}


def main() -> int:
    """Measure a thousand jobs, and a hundred while the database is locked for twenty seconds."""
    return max(run(), run(100, 30.0, 1.0, locked_s=20.0))


def run(
    num_jobs: int = JOBS,
    measured_s: float = MEASURED_S,
    events_per_s: float = EVENTS_PER_S,
    locked_s: float = 0.0,
) -> int:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name, serving(Path(name), events_per_s, num_jobs) as (client, process):
        folder = Path(name)
        began_s = time.monotonic()
        with ThreadPoolExecutor(8) as crowd:
            ids = list(crowd.map(lambda _: client.submit(SPEC).id, range(num_jobs)))
        submitted_s = time.monotonic() - began_s
        store = Store(f"sqlite:///{folder}/data/raysync.db")
        while sum(row.state == "RUNNING" for row in store.jobs.live()) < num_jobs:
            assert time.monotonic() - began_s < 300, "they do not all come to run"
            time.sleep(0.5)
        running_s = time.monotonic() - began_s
        with locked(folder / "data" / "raysync.db", locked_s):
            facts = measure(client, store, process, ids, measured_s)
        facts["events_missing"] = _missing(store, ids)
        log = (folder / "serve.log").read_text()
        record(
            "service.live_jobs",
            jobs=num_jobs,
            locked_s=locked_s,
            events_per_s=num_jobs * events_per_s,
            submitted_s=submitted_s,
            running_s=running_s,
            gateways=log.count("joined the Ray cluster"),
            errors=log.count('"level": "error"'),
            wal_mib=(folder / "data" / "raysync.db-wal").stat().st_size / (1 << 20),
            **facts,
        )
        store.close()
    return 0


def measure(client: Client, store: Store, process: Any, ids: list[str], measured_s: float) -> dict[str, Any]:
    """Ask, turn and look for a while; return how it went."""
    pids = [process.pid, *_children(process.pid)]
    health, turns, left_s, num_owners = list[float](), list[float](), list[float](), 0
    cpu_s, began_s, events = [_cpu_s(pid) for pid in pids], time.monotonic(), _num_events(store)
    while time.monotonic() - began_s < measured_s:
        health.append(_timed(lambda: httpx2.get(f"{client.place.url}/healthz")))
        id = ids[len(turns) % len(ids)]
        turns.append(_timed(partial(client.turn, id, delta=0.1 + 0.001 * len(turns))))
        owners, until_s = _leases(store)
        num_owners, left_s = max(num_owners, owners), [*left_s, until_s - time.time()]
        time.sleep(0.2)
    took_s = time.monotonic() - began_s
    cores = [(_cpu_s(pid) - before) / took_s for pid, before in zip(pids, cpu_s, strict=True)]
    return {
        "taken_in_per_s": (_num_events(store) - events) / took_s,
        "lag_worst_s": _worst_lag_s(store),
        "health_worst_ms": 1e3 * max(health),
        "turn_median_ms": 1e3 * statistics.median(turns),
        "turn_p99_ms": 1e3 * sorted(turns)[int(0.99 * len(turns))],
        "lease_left_least_s": min(left_s),
        "lease_owners": num_owners,
        "service_cores": cores[0],
        "gateway_cores": sum(cores[1:]),
    }


@contextlib.contextmanager
def locked(database: Path, seconds: float) -> Iterator[None]:
    """Hold the database's lock for a while, beside."""
    import sqlite3

    def hold() -> None:
        other = sqlite3.connect(database, timeout=30, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        time.sleep(seconds)
        other.execute("ROLLBACK")
        other.close()

    holder = threading.Thread(target=hold)
    if seconds:
        holder.start()
    yield
    if seconds:
        holder.join(60)


def _missing(store: Store, ids: list[str]) -> int:
    """Return how many numbers are missing among the events of all jobs, once they are taken in again."""
    time.sleep(12.0)
    with store.database.read() as connection:
        counted = connection.exec_driver_sql("SELECT count(*), max(sequence) FROM events GROUP BY job").fetchall()
    assert len(counted) == len(ids)
    return sum(last + 1 - count for count, last in counted)


@contextlib.contextmanager
def serving(folder: Path, events_per_s: float, num_jobs: int) -> Iterator[tuple[Client, subprocess.Popen[bytes]]]:
    """Run a service with a gateway to steady jobs, as a process of its own."""
    (folder / "data").mkdir()
    command = [sys.executable, "-m", "tests.bench.live_jobs", str(folder), str(events_per_s), str(num_jobs)]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with (folder / "serve.log").open("wb") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    try:
        note = folder / "place"
        deadline_s = time.monotonic() + 60
        while not note.exists() and time.monotonic() < deadline_s:
            assert process.poll() is None, (folder / "serve.log").read_text()
            time.sleep(0.1)
        url, token = note.read_text().split()
        while httpx2.get(f"{url}/readyz").status_code != 200:
            assert time.monotonic() < deadline_s, (folder / "serve.log").read_text()
            time.sleep(0.1)
        with Client(url, token) as client:
            yield client, process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def serve_steady(folder: Path, events_per_s: float, num_jobs: int) -> None:
    """Be the service."""
    import uvicorn

    from service import logs
    from service.runtime.gateway import GatewayRuntime
    from service.security.auth import Role, create_token
    from service.server.app import create_app
    from service.server.lock import bound_socket
    from service.server.wiring import assemble
    from service.settings import Settings, environment

    logs.configure("json")
    settings = Settings(data=folder / "data", storage=str(folder / "jobs"), max_live_jobs=num_jobs)
    store = Store(settings.database_url)
    store.database.migrate()
    module = "tests.bench.still_gateway"
    runtime = GatewayRuntime(
        name="steady",
        address=lambda: str(events_per_s),
        command=lambda address, endpoint: (sys.executable, "-m", module, address, endpoint, str(os.getpid())),
        env=environment(),
        log=folder / "gateway.log",
    )
    app = create_app(assemble(settings, store, runtime))
    with bound_socket("127.0.0.1", 0) as bound:
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        (folder / "place").write_text(f"{url} {create_token(store.tokens, 'bench', Role.ADMIN)}")
        config = uvicorn.Config(app, loop="uvloop", http="httptools", log_config=None, access_log=False)
        uvicorn.Server(config).run([bound])


def _timed(work: Any) -> float:
    sent_s = time.perf_counter()
    work()
    return time.perf_counter() - sent_s


def _num_events(store: Store) -> int:
    return sum(row.num_events for row in store.jobs.live())


def _worst_lag_s(store: Store) -> float:
    """Return by how much time the books are behind the job they are most behind of."""
    rows = [row for row in store.jobs.live() if row.started_s is not None]
    with store.database.read() as connection:
        told = {
            row[0]: row[1]
            for row in connection.exec_driver_sql("SELECT job, max(time_s) FROM events GROUP BY job").fetchall()
        }
    return max(time.time() - row.admitted_s - told.get(row.id, 0.0) for row in rows if row.admitted_s)


def _leases(store: Store) -> tuple[int, float]:
    with store.database.read() as connection:
        owners = connection.exec_driver_sql("SELECT count(DISTINCT lease_owner) FROM jobs").scalar()
        until_s = connection.exec_driver_sql("SELECT max(until_s) FROM services WHERE id != 'probe'").scalar()
    return int(owners or 0), float(until_s or 0.0)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    serve_steady(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))

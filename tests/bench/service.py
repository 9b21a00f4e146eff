"""The control plane under load, on loopback: many readers of one job, long lists, knobs turned, time to the first step.

A real `raysync serve` on a Ray of its own; readers are a process of their own, so that what is measured is the service.
"""

from __future__ import annotations

import asyncio
import http.client
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from raysync.control.states import JobState
from raysync.events import Event
from raysync.spec import JobSpec, parse_spec
from service.client import AsyncClient, Client
from service.security.auth import Role, create_token
from service.store import JobRow, Store
from tests.bench import trouble
from tests.bench.record import record
from tests.serving import Service, until

READERS, MEASURED_S = 200, 20.0
JOBS, LISTINGS = 10_000, 300
TURNS = 40
TROUBLED_S, HISTORY = 45.0, 100_000
STARTS = 3
WARM = 7
WARM_UP_S = 25.0
"""So long after a job its processes have been replaced by others that wait."""
ROLES = ("coordinator", "shard", "worker")

PACED = '''
import time, torch
from torch.utils.data import TensorDataset

class Paced:
    """Steps of 20 ms: with a metrics event and a decision each, that is 100 events per second."""
    def model(self): return torch.nn.Linear(4, 2)
    def train_data(self): return TensorDataset(torch.randn(256, 4), torch.zeros(256).long())
    eval_data = train_data
    def loss(self, model, batch):
        time.sleep(0.016)  # the rest is the step itself
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
'''


def main() -> int:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        service = Service(Path(folder), warm=WARM)
        try:
            client = service.start()
            _first_steps(client)
            _turns(client)
            _readers(service, client)
            _listings(service, client)
            _readers(service, client, in_trouble=True)
        finally:
            service.close()
    return 0


def digits(**changes: Any) -> JobSpec:
    """Return the job the command line's examples use."""
    return parse_spec({"task": {"kind": "digits"}, "scale": {"workers": 2}, "budget": {"steps": 300}, **changes})


def _first_steps(client: Client) -> None:
    """From the request to the first step of the last worker, on a service whose processes wait for it; and at once after
    another, when they do not.
    """
    for workers, shards, bar_s in ((2, 1, 2.5), (4, 2, 4.0)):
        scale = {"workers": workers, "shards": shards}
        warm, told = [], dict[str, Any]()
        for _ in range(STARTS):
            time.sleep(WARM_UP_S)
            taken_s, told = _first_step(client, digits(scale=scale))
            warm.append(taken_s)
        at_once_s, _ = _first_step(client, digits(scale=scale))
        peaks = {role: max(f["built_rss_bytes"] for n, f in told.items() if n.startswith(role)) for role in ROLES}
        record(
            "service.first_step",
            workers=workers,
            shards=shards,
            median_s=statistics.median(warm),
            worst_s=max(warm),
            at_once_s=at_once_s,
            bar_s=bar_s,
            built_mb={role: round(peak / 1e6) for role, peak in peaks.items()},
        )


def _first_step(client: Client, spec: JobSpec) -> tuple[float, dict[str, Any]]:
    """Return how long the first step took to come, and what the job's actors told of themselves."""
    called_s = time.time()
    id = client.submit(spec).id
    client.wait(id, 60)
    told = client.job(id).runs["actors"]
    return max(found["first_step_s"] for found in told.values() if found.get("first_step_s")) - called_s, told


def _turns(client: Client) -> None:
    """From PATCH to effect: how long the answer takes, and how many decisions pass before the new value rules."""
    spec = digits(
        strategy={"kind": "selsync", "delta": 0.3}, budget={"steps": 10**6}, task={"kind": "digits", "hidden": [256]}
    )
    id = client.submit(spec).id
    until(lambda: client.job(id).step > 50)
    answered = []
    for turn in range(TURNS):
        sent_s = time.perf_counter()
        client.turn(id, delta=0.1 + 0.01 * turn)
        answered.append(1e3 * (time.perf_counter() - sent_s))
        time.sleep(0.1)
    until(lambda: client.knobs(id).version_in_force == TURNS)
    events = client.events(id, kind="knobs").items
    passed = [event.step - event.data["asked_step"] for event in events]
    client.stop(id)
    client.wait(id, 60)
    record(
        "service.turn",
        turns=len(passed),
        answer_median_ms=statistics.median(answered),
        answer_worst_ms=max(answered),
        steps_median=statistics.median(passed),
        steps_worst=max(passed),
        bar_steps=1,
    )


def _readers(service: Service, client: Client, in_trouble: bool = False) -> None:
    """Many readers of one job's events; the service and its gateway together must leave a core free. In trouble, knobs
    turn and health answers all the same, and no reader loses an event.
    """
    from tests.service.test_packages import packed

    package = client.upload(packed({"paced.py": PACED})).id
    task = {"kind": "custom", "entrypoint": "paced:Paced"}
    spec = parse_spec(
        {
            "task": task,
            "scale": {"workers": 1},
            "data": {"batch_size": 8},
            "budget": {"steps": 10**6},
            "eval": {"every": 10**6},
        }
    )
    id = client.submit(spec, package=package).id
    until(lambda: client.job(id).step > 20)
    after = client.job(id).last_sequence
    context = multiprocessing.get_context("spawn")
    counts: Any = context.SimpleQueue()
    reader = context.Process(target=_read, args=(client.place.url, client.place.token, id, after, counts))
    reader.start()
    assert counts.get() == "connected"
    assert service.process is not None
    pids = [service.process.pid, *_children(service.process.pid)]
    cpu_before_s, started_s, first = _cpu_s(pids), time.monotonic(), client.job(id).last_sequence
    beside = _beside_trouble(service, client, id) if in_trouble else {}
    time.sleep(0.0 if in_trouble else MEASURED_S)
    cores = (_cpu_s(pids) - cpu_before_s) / (time.monotonic() - started_s)
    rate = (client.job(id).last_sequence - first) / (time.monotonic() - started_s)
    client.stop(id)
    last = client.wait(id, 60).last_sequence
    found = counts.get()
    reader.join(30)
    record(
        "service.trouble" if in_trouble else "service.readers",
        **beside,
        readers=READERS,
        events_per_s=rate,
        events_each=last - after,
        readers_with_every_event=sum(numbers == (last - after, True) for numbers in found),
        service_cores=cores,
        bar_cores=1.0,
    )


def _beside_trouble(service: Service, client: Client, id: str) -> dict[str, Any]:
    """Return how long `PATCH` and `/healthz` take while trouble is made."""
    context = multiprocessing.get_context("spawn")
    begun, tally = context.Event(), context.SimpleQueue()
    database = service.folder / "data" / "raysync.db"
    token = _viewer(database)
    target = trouble.Target(client.place.url, token, _told_much(database), str(database))
    maker = context.Process(target=trouble.make, args=(target, TROUBLED_S, begun, tally), daemon=True)
    maker.start()
    assert begun.wait(60)
    taken: dict[str, list[float]] = {"patch": [], "health": []}
    ends_s = time.monotonic() + TROUBLED_S - 6.0

    def ask(name: str, question: Callable[[int], object]) -> None:
        while time.monotonic() < ends_s:
            sent_s = time.perf_counter()
            question(len(taken[name]))
            taken[name].append(1e3 * (time.perf_counter() - sent_s))
            time.sleep(0.05)

    health = http.client.HTTPConnection("127.0.0.1", urlsplit(client.place.url).port, timeout=60)

    def is_well(_: int) -> None:
        health.request("GET", "/healthz")
        assert health.getresponse().read()

    asking = threading.Thread(target=ask, args=("health", is_well))
    asking.start()
    with Client(client.place.url, client.place.token) as own:
        ask("patch", lambda n: own.turn(id, lr=0.01 + 1e-5 * n))
    asking.join(60)
    found = {f"{name}_{what}_ms": value for name, values in taken.items() for what, value in _spread(values).items()}
    return {**found, "turns": len(taken["patch"]), **tally.get(), "bar_patch_p99_ms": 300.0, "bar_health_ms": 100.0}


def _spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {"median": statistics.median(ordered), "p99": ordered[int(0.99 * len(ordered))], "worst": ordered[-1]}


def _viewer(database: Path) -> str:
    store = Store(f"sqlite:///{database}")
    token = create_token(store.tokens, "viewer", Role.VIEWER)
    store.close()
    return token


def _told_much(database: Path) -> str:
    """Return an ended job with a long history."""
    store, id = Store(f"sqlite:///{database}"), "many-00000000"
    data = {"train/loss": 1.0, "sync/lssr": 0.5, "comm/bytes_up": 1e6, "comm/bytes_down": 1e6}
    for first in range(0, HISTORY, 5000):
        told = [Event(sequence=n, kind="metrics", time_s=0.1, step=n, data=data) for n in range(first, first + 5000)]
        store.events.append(id, told, {})
    store.close()
    return id


def _read(url: str, token: str, id: str, after: int, counts: Any) -> None:
    """Be all the readers: count what each gets, and whether every number came once and in order."""

    async def one(client: AsyncClient, connected: asyncio.Semaphore) -> tuple[int, bool]:
        expected, count, in_order = after + 1, 0, True
        async for kind, number in _numbers(client, id, after):
            if count == 0:
                connected.release()
            if kind == "end":
                return count, in_order
            in_order &= number == expected
            expected, count = number + 1, count + 1
        return count, False

    async def all_of_them() -> list[tuple[int, bool]]:
        import httpx2

        limits = httpx2.Limits(max_connections=READERS + 10)
        async with AsyncClient(url, token, limits=limits) as client:
            connected = asyncio.Semaphore(0)
            tasks = [asyncio.create_task(one(client, connected)) for _ in range(READERS)]
            for _ in range(READERS):
                await connected.acquire()
            counts.put("connected")
            return await asyncio.gather(*tasks)

    counts.put(asyncio.run(all_of_them()))


async def _numbers(client: AsyncClient, id: str, after: int) -> Any:
    """Yield kind and number of every event, without making objects of them: the readers share two cores as well."""
    from service.client.requests import stream_path
    from service.client.stream import Stream

    def numbered(kind: str, data: list[str]) -> list[tuple[str, int]]:
        return [(kind, int(data[0].partition('"sequence":')[2].partition(",")[0]) if kind != "end" else -1)]

    async for kind, number in client._read(Stream(stream_path(id, "events"), numbered, after)):
        yield kind, number


def _listings(service: Service, client: Client) -> None:
    """Pages of a list of very many jobs."""
    store = Store(f"sqlite:///{service.folder / 'data' / 'raysync.db'}")
    states = [state.value for state in JobState if state.is_terminal]
    metrics = {f"m/{n}": 0.5 for n in range(16)}
    text = digits().model_dump_json()
    for n in range(JOBS):
        store.jobs.add(
            JobRow(
                id=f"many-{n:08x}",
                name="many",
                owner="bench",
                state=states[n % 3],
                strategy="bsp",
                spec=text,
                path="/nowhere",
                created_s=1e9 + n,
                steps=100,
                metrics=dict(metrics),
                knobs={"lr": 0.1, "pause": False},
            )
        )
    store.close()
    taken, cursor = [], None
    for turn in range(LISTINGS):
        sent_s = time.perf_counter()
        page = client.jobs(state="SUCCEEDED" if turn % 3 == 2 else None, cursor=cursor if turn % 3 else None)
        taken.append(1e3 * (time.perf_counter() - sent_s))
        cursor = page.next_cursor
        assert len(page.items) == 50
    taken.sort()
    record(
        "service.list", jobs=JOBS, median_ms=statistics.median(taken), p95_ms=taken[int(0.95 * LISTINGS)], bar_ms=50.0
    )


def _children(pid: int) -> list[int]:
    """Return a process's children: the gateway is one."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    listed = [int(child) for child in path.read_text().split()]
    return [child for child in listed if "actors.gateway" in Path(f"/proc/{child}/cmdline").read_text()]


def _cpu_s(pids: list[int]) -> float:
    """Return the processor time of processes so far."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")

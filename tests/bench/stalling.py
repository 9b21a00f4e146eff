"""A viewer who tries to stall steering: how long `PATCH knobs` and `/healthz` take while very many streams catch up.

On the still runtime, so that it is the service that is measured. The service and the readers are processes of their
own; the knobs of one job are turned while streams read another one's whole history, and then while pages are asked for
as fast as they come.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from raysync.events import Event
from tests.bench.record import record

STREAMS, EVENTS = 200, 100_000
PAGERS = 50
MEASURED_S = 20.0
BAR_S = 0.3
_EVERY_S = 0.02


class Place(NamedTuple):
    """Where the service is, and what is there."""

    port: int
    tokens: dict[str, str]
    steered: str
    told: str


def main() -> int:
    """Measure and print; 1 if a bar is missed."""
    with tempfile.TemporaryDirectory() as folder:
        return max(
            measure(Path(folder) / what, what, STREAMS if what == "streams" else PAGERS, EVENTS, MEASURED_S)
            for what in ("streams", "logs", "pages")
        )


def measure(folder: Path, what: str, num_readers: int, num_events: int, measured_s: float) -> int:
    """Turn knobs without and with readers; print both."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    service = context.Process(target=_serve, args=(str(folder), num_events, theirs), daemon=True)
    service.start()
    place = Place(*ours.recv())
    alone = _turns(place, 3.0)
    reading = context.Event()
    readers = context.Process(target=_read, args=(place, what, num_readers, measured_s + 5.0, reading), daemon=True)
    readers.start()
    assert reading.wait(60)
    turned, health = _turns(place, measured_s), _turns(place, 3.0, health=True)
    ours.send("end")
    readers.terminate()
    readers.join(10)
    service.join(20)
    p99_s = _quantile(turned, 0.99)
    record(
        "service.stalling",
        by=what,
        readers=num_readers,
        events=num_events,
        turns=len(turned),
        alone_p99_ms=1e3 * _quantile(alone, 0.99),
        median_ms=1e3 * statistics.median(turned),
        p99_ms=1e3 * p99_s,
        worst_ms=1e3 * max(turned),
        health_worst_ms=1e3 * max(health),
        bar_ms=1e3 * BAR_S,
    )
    return int(p99_s > BAR_S)


def _serve(folder: str, num_events: int, pipe: Any) -> None:
    """Be the service: one job that runs, and one that has told much and ended."""
    from service.client import Client
    from tests.service.conftest import tokens_for, until
    from tests.service.still_runtime import StillRuntime
    from tests.service.test_client import JOB, Server, started

    runtime = StillRuntime()
    server = Server(Path(folder), runtime)
    tokens = tokens_for(server.store)
    with Client(server.url, tokens["admin"]) as client:
        steered, told = started(client, runtime), client.submit(JOB).id
        until(lambda: told in runtime.alive)
        runtime.enter(told, "RUNNING")
        runtime.enter(told, "SUCCEEDED")
        client.wait(told, 20)
    data = {"train/loss": 1.0, "sync/lssr": 0.5, "comm/bytes_up": 1e6, "comm/bytes_down": 1e6}
    for first in range(2, num_events, 5000):
        numbers = range(first, min(first + 5000, num_events))
        told_now = [Event(sequence=n, kind="metrics", time_s=0.1, step=n, data=data) for n in numbers]
        server.store.events.append(told, told_now, {})
    pipe.send((server.port, tokens, steered, told))
    pipe.recv()
    os._exit(0)  # nothing of it is needed any more


def _read(place: Place, what: str, count: int, for_s: float, reading: Any) -> None:
    """Be the readers; what has ended is read again from the start."""
    paths = {
        "streams": f"/api/v1/jobs/{place.told}/events/stream",
        "logs": f"/api/v1/jobs/{place.steered}/logs/stream",
        "pages": f"/api/v1/jobs/{place.told}/metrics?points=2000",
    }
    request = (
        f"GET {paths[what]} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {place.tokens['viewer']}\r\n"
        "Connection: close\r\n\r\n"
    )

    async def one(number: int) -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
                writer.write(request.encode())
                while await reader.read(1 << 18):
                    if number == 0:
                        reading.set()
                writer.close()
            await asyncio.sleep(0.05)

    async def all_of_them() -> None:
        async with asyncio.timeout(for_s), asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(one(number))

    with contextlib.suppress(TimeoutError):
        asyncio.run(all_of_them())


def _turns(place: Place, for_s: float, *, health: bool = False) -> list[float]:
    """Turn a knob again and again, or ask for health; return how long each took."""
    connection = http.client.HTTPConnection("127.0.0.1", place.port, timeout=60)
    headers = {"Authorization": f"Bearer {place.tokens['operator']}", "Content-Type": "application/json"}
    path, taken, ends_s = f"/api/v1/jobs/{place.steered}/knobs", list[float](), time.monotonic() + for_s
    while time.monotonic() < ends_s:
        body = json.dumps({"values": {"delta": 0.1 + 1e-4 * len(taken)}})
        sent_s = time.perf_counter()
        connection.request(*(("GET", "/healthz") if health else ("PATCH", path, body, headers)))
        answer = connection.getresponse()
        answer.read()
        taken.append(time.perf_counter() - sent_s)
        assert answer.status == 200, answer.status
        time.sleep(_EVERY_S)
    connection.close()
    return taken


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


if __name__ == "__main__":
    raise SystemExit(main())

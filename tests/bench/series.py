"""How long charts take to read: 10 jobs of 100,000 events each, 5 metrics, down-sampled to 500 points.

    python -m tests.bench.series [JOBS] [EVENTS]

Prints one JSON line: seconds to write the events, to reduce them, to read all series from the start, by worker, and
only what is new; and the size of the database.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from raysync.events import Event
from raysync.metrics import TOLD
from service.store import JobRow, Store

NAMES = ("train/loss", "eval/accuracy", "sync/grad_delta", "comm/bytes_up", "time/compute_s")
_BATCH = 2000


def told(n: int, draw: random.Random) -> Event:
    """Return the event of a number: metrics and decisions in turn, an evaluation every 500 steps."""
    step = n // 2
    if n % 2:
        scores = {str(worker): round(draw.random(), 6) for worker in range(8)}
        data: dict[str, Any] = {"sync": step % 7 == 0, "reason": "grad_change 0.1 < delta 0.3", "round": step // 7}
        return Event(sequence=n, kind="decision", step=step, time_s=0.01 * n, data={**data, "scores": scores})
    values = {metric.name: draw.random() for metric in TOLD if not metric.name.startswith(("eval/", "pipeline/"))}
    values |= {"comm/bytes_up": 1000.0 * step, "comm/bytes_down": 900.0 * step}
    values |= {"eval/accuracy": draw.random()} if step % 500 == 0 else {}
    return Event(sequence=n, kind="metrics", step=step, time_s=0.01 * n, data=values)


def timed(work: Callable[[], object]) -> float:
    """Return how many seconds something takes."""
    started_s = time.perf_counter()
    work()
    return time.perf_counter() - started_s


def main(num_jobs: int = 10, num_events: int = 100_000) -> None:
    """Measure."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(f"sqlite:///{folder}/raysync.db")
        store.database.migrate()
        ids = [f"bench-{n:08d}" for n in range(num_jobs)]
        writing_s = rolling_s = 0.0
        for number, id in enumerate(ids):
            draw = random.Random(number)
            store.jobs.add(
                JobRow(id=id, name="bench", owner="me", strategy="selsync", path="/", created_s=1.0, steps=1, knobs={})
            )
            for first in range(0, num_events, _BATCH):
                batch = [told(n, draw) for n in range(first, min(num_events, first + _BATCH))]
                writing_s += timed(partial(store.events.append, id, batch, {}))
                rolling_s += timed(partial(_rolled, store, id))

        def read(after: int, by_worker: bool = False) -> None:
            for id in ids:
                found = store.series.read(id, after, num_events - 1, NAMES, 500, by_worker=by_worker)
                assert after > 0 or len(found) == (8 if by_worker else len(NAMES)), found.keys()

        size_mb = sum(path.stat().st_size for path in Path(folder).iterdir()) / 1e6
        line = {
            "jobs": num_jobs,
            "events": num_events,
            "write_s": writing_s,
            "reduce_s": rolling_s,
            "read_s": timed(lambda: read(-1)),
            "read_by_worker_s": timed(lambda: read(-1, by_worker=True)),
            "read_new_s": timed(lambda: read(num_events - 200)),
            "database_mb": size_mb,
        }
        print(json.dumps({name: round(value, 4) for name, value in line.items()}))
        store.close()


def _rolled(store: Store, id: str) -> None:
    while store.series.roll(id):
        pass


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

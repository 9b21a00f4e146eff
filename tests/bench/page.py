"""The page under load, in headless Chromium: time between frames and memory while a job of 8 workers streams into it.

10,000 steps are there when the view opens, then 20 updates a second come in: `python -m tests.bench page`, a minute;
`--minutes=10` looks at memory for longer. Memory is taken after a forced collection: the heap with the columns of the
charts, elements, listeners, and what the process holds. At last the job goes back to a checkpoint, and steps come again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tests.page.browser import Browser, Tab, chromium
from tests.page.served import Served, until

_SAMPLE_S = 20.0
_BACK = 5000
WORKERS = 8
POINTS = 10_000
UPDATES_PER_S = 20
_FRAMES = """() => new Promise((done) => {
  const times = [];
  let last = performance.now();
  const tick = (now) => { times.push(now - last); last = now; times.length < 600 ? requestAnimationFrame(tick) : done(times) };
  requestAnimationFrame(tick);
})"""


class Feeder(threading.Thread):
    """Lets a job take steps at a steady pace."""

    def __init__(self, served: Served, job: str, first: int) -> None:
        super().__init__(daemon=True)
        self._served, self._job, self.step = served, job, first
        self.back = 0
        """So many steps the job is to go back, to a checkpoint."""
        self.is_over = threading.Event()

    def run(self) -> None:
        due_s = time.monotonic()
        while not self.is_over.is_set():
            tell(self._served, self._job, self.step)
            self.step, self.back = self.step + 1 - self.back, 0
            due_s += 1 / UPDATES_PER_S
            time.sleep(max(0.0, due_s - time.monotonic()))


def main() -> int:
    """Measure; print one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench page")
    parser.add_argument("--minutes", type=float, default=1.0)
    asked, _ = parser.parse_known_args(sys.argv[1:])
    if chromium() is None:
        print("there is no Chromium here: apt-get install chromium")
        return 0
    with tempfile.TemporaryDirectory() as folder, Browser() as browser:
        served = Served(Path(folder))
        job = served.running(scale={"workers": WORKERS}, budget={"steps": 1_000_000})
        for step in range(POINTS):
            tell(served, job, step)
        until(lambda: served.call("GET", f"/jobs/{job}")["step"] == POINTS - 1, 300)
        with browser.tab(served.url, served.tokens["admin"]) as tab:
            tab.open(f"jobs/{job}")
            tab.see("#chart-signal")
            _fill(tab, served, job)
            feeder = Feeder(served, job, POINTS)
            feeder.start()
            time.sleep(3)
            found = _measured(browser, tab, asked.minutes)
            feeder.back = _BACK
            tab.until("() => !document.raysync.job.of('train/loss').isOrdered")
            found |= _frame_times("recovered_frame_ms", tab.page.evaluate(_FRAMES))
            feeder.is_over.set()
            feeder.join()
        served.stop()
    print(json.dumps({"bench": "page", "workers": WORKERS, "points": POINTS, **found, **_machine()}))
    return 0


def _fill(tab: Tab, served: Served, job: str) -> None:
    """Give the view every point there is, as if it had been open all the time: what is fetched is thinned out."""
    page = served.call("GET", f"/jobs/{job}/events?limit=1")
    last, events = page["items"][0]["sequence"] - 1, list[dict[str, Any]]()
    while page := served.call("GET", f"/jobs/{job}/events?limit=2000&after={last}")["items"]:
        events, last = [*events, *page], page[-1]["sequence"]
    tab.page.evaluate(
        "async (events) => { const job = document.raysync.job; job.reset(); job.skip = { own: -1, workers: -1 }; job.take(events) }",
        events,
    )
    tab.until("n => document.raysync.job.of('train/loss').length >= n", POINTS)


def _measured(browser: Browser, tab: Tab, minutes: float) -> dict[str, Any]:
    look = _Look(browser, tab)
    frames, seen = list[float](), [look.memory()]
    first_s = time.monotonic()
    while time.monotonic() < first_s + 60 * minutes:
        frames += tab.page.evaluate(_FRAMES)
        if time.monotonic() > first_s + _SAMPLE_S * len(seen):
            seen.append(look.memory())
        tab.page.evaluate("top => scrollTo(0, top)", 600 * (len(frames) // 600 % 3))
    seen.append(look.memory())
    return {
        "updates_per_s": UPDATES_PER_S,
        "frames": len(frames),
        **_frame_times("frame_ms", frames),
        "minutes": minutes,
        "samples": len(seen),
        **{name: [round(one[name], 1) for one in (seen[0], seen[len(seen) // 2], seen[-1])] for name in seen[0]},
        "heap_mb_per_minute": round(_slope([one["heap_mb"] for one in seen]) * len(seen) / minutes, 3),
        "steps_held": tab.page.evaluate("document.raysync.job.of('train/loss').length"),
    }


class _Look:
    """What a tab holds, after a collection: at the beginning, in the middle and at the end."""

    def __init__(self, browser: Browser, tab: Tab) -> None:
        self._protocol = tab.page.context.new_cdp_session(tab.page)
        self._pids = browser.renderers()

    def memory(self) -> dict[str, float]:
        """Return it, in MB and numbers."""
        for _ in range(2):
            self._protocol.send("HeapProfiler.collectGarbage")
        heap = self._protocol.send("Runtime.getHeapUsage")
        counted = self._protocol.send("Memory.getDOMCounters")
        resident = max((_resident_mb(pid) for pid in self._pids), default=0.0)
        return {
            "heap_mb": heap["usedSize"] / 1e6,
            "columns_mb": heap.get("backingStorageSize", 0) / 1e6,
            "elements": counted["nodes"],
            "listeners": counted["jsEventListeners"],
            "process_mb": resident,
        }


def _resident_mb(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1e3


def _slope(values: list[float]) -> float:
    """Return by how much values grow from one to the next, by least squares."""
    if len(values) < 2:
        return 0.0
    return statistics.linear_regression(range(len(values)), values).slope


def _frame_times(name: str, times: list[float]) -> dict[str, float]:
    frames = sorted(times)
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    return {f"{name}_{word}": round(frames[int(share * len(frames))], 1) for word, share in shares.items()}


def tell(served: Served, job: str, step: int) -> None:
    """Let a job of eight workers tell one step."""
    scores = {str(worker): 0.2 + 0.15 * ((step * (worker + 3)) % 11) / 11 for worker in range(WORKERS)}
    sync = max(scores.values()) > 0.33
    served.runtime.tell(
        job, "decision", {"sync": sync, "reason": "measured", "round": step, "scores": scores}, step=step
    )
    served.runtime.tell(
        job,
        "metrics",
        {
            "train/loss": 2.0 / (1 + 0.01 * step) + 0.02 * (step % 7),
            "sync/grad_delta": max(scores.values()),
            "sync/delta": 0.33,
            "sync/lssr": 0.8,
            "comm/bytes_up": 4000.0 * step,
            "comm/bytes_down": 3000.0 * step,
            "comm/compression": 25.0,
            "feedback/residual_norm": 0.3 + 0.01 * (step % 13),
            "time/compute_s": 0.01,
            "time/encode_s": 0.002,
            "time/sync_s": 0.004,
            "sync/wait_s": 0.001 * (1 + step % 3),
            "train/samples_per_s": 900.0 + step % 40,
            **({"eval/accuracy": 1 - 0.9 / (1 + 0.01 * step)} if step % 10 == 9 else {}),
        },
        step=step,
    )


def _machine() -> dict[str, Any]:
    return {"cores": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}


if __name__ == "__main__":
    sys.exit(main())

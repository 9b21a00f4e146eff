"""Breaks a real job on Ray on purpose: random kills and freezes of its processes, and what they cost.

python -m tests.chaos                          digits, SelSync and onebit, 20 faults
python -m tests.chaos job.yaml --faults 50 --seed 1 --every-s 5

It prints, per role and kind of fault, how long the others stood still and how long until all was as before (median and
worst), and what was lost: steps that were decided on twice or never. The loss is saved as a picture beside a calm run's.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import logging
import os
import random
import signal
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import ray

from actors import Job, submit
from raysync.events import Event, Metrics
from raysync.spec import JobSpec, parse_spec, read_spec

_UP_S = 60.0
_ROLES = ("worker", "shard", "coordinator", "stage")
_DEFAULT: dict[str, Any] = {
    "name": "chaos",
    "task": {"kind": "custom", "entrypoint": "tests.drowsy:Drowsy"},
    "strategy": {"kind": "selsync"},
    "compression": {"push": {"kind": "onebit"}, "pull": {"kind": "onebit"}},
    "optimizer": {"kind": "sgd", "lr": 0.05, "momentum": 0.9},
    "scale": {"workers": 3, "shards": 2, "cpus_per_worker": 0.5},
    "budget": {"steps": 1_000_000},
}


class Strike(NamedTuple):
    """A fault, and what it cost."""

    role: str
    kind: str
    stall_s: float
    """The longest time without a step."""
    recovery_s: float
    """Until the job was RUNNING again, with every process there."""


def settled(job: Job) -> Any:
    """Wait until the job runs as it should; return its status."""
    deadline_s = time.monotonic() + _UP_S
    while time.monotonic() < deadline_s:
        status = job.status()
        if status.state.is_terminal:
            raise SystemExit(f"the job ended: {status.state} {status.reason}")
        is_up = all(found.life == "alive" for found in status.actors.values())
        if status.state == "RUNNING" and status.step > 5 and is_up:
            return status
        time.sleep(0.05)
    raise SystemExit(f"the job does not come up again within {_UP_S:.0f} s: {job.status()}")


def strike(job: Job, choose: random.Random, frozen_s: float) -> tuple[str, str, float, float]:
    """Kill or freeze a process; return its role, how, when, and how long until all was as before."""
    status = settled(job)
    names = sorted(status.actors)
    roles = [role for role in _ROLES if any(name.startswith(role) for name in names)]
    role = choose.choice(roles)
    name = choose.choice([name for name in names if name.startswith(role)])
    kind = choose.choice((signal.SIGKILL, signal.SIGSTOP))
    pid = status.actors[name].pid
    began_s = time.time()
    os.kill(pid, kind)
    print(f"  {kind.name} {name}", flush=True)
    time.sleep(frozen_s)
    if kind is signal.SIGSTOP:
        with contextlib.suppress(ProcessLookupError):  # unless another has taken its place
            os.kill(pid, signal.SIGCONT)
    settled(job)
    return role, kind.name, began_s, time.time() - began_s


def stall_s(steps_s: list[float], began_s: float, ended_s: float) -> float:
    """Return the longest time without a step from shortly before a fault until all was as before."""
    near = [at_s for at_s in steps_s if began_s - 1.0 <= at_s <= ended_s + 1.0]
    return max((after - before for before, after in itertools.pairwise(near)), default=0.0)


def losses(records: list[Event]) -> list[tuple[int, float]]:
    """Return the training loss by step."""
    found = [(record.step, record.body.values) for record in records if isinstance(record.body, Metrics)]
    return [(step, values["train/loss"]) for step, values in found if values.get("train/loss") is not None]  # type: ignore[misc]


def calm(spec: JobSpec, steps: int, folder: str) -> list[tuple[int, float]]:
    """Return the losses of a run of so many steps in which nothing happens."""
    quiet = spec.model_copy(update={"budget": spec.budget.model_copy(update={"steps": steps})})
    job = submit(quiet, storage_path=folder)
    job.wait(3600)
    records = job.result().records()
    job.forget()
    return losses(records)


def draw(path: Path, broken: list[tuple[int, float]], quiet: list[tuple[int, float]], times: int) -> None:
    """Save both losses as a picture, if there is something to draw with."""
    try:
        from matplotlib import pyplot
    except ImportError:
        return
    figure, axes = pyplot.subplots(figsize=(8, 4))
    for label, points in ((f"{times} faults", broken), ("calm", quiet)):
        axes.plot(*zip(*points, strict=True), label=label, alpha=0.7, linewidth=0.8)
    axes.set_xlabel("step")
    axes.set_ylabel("training loss")
    axes.set_yscale("log")
    axes.legend()
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=120, bbox_inches="tight")
    print(f"saved {path}")


def main() -> int:
    """Run a job and break it."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("spec", nargs="?", help="a job file; its budget should be long (default: digits)")
    parser.add_argument("--faults", type=int, default=20, help="how many (default 20)")
    parser.add_argument("--seed", type=int, default=1, help="which and when (default 1)")
    parser.add_argument("--every-s", type=float, default=2.0, help="calm seconds between two (default 2)")
    parser.add_argument("--frozen-s", type=float, default=3.0, help="how long one is frozen (default 3)")
    parser.add_argument("--no-calm", action="store_true", help="leave the calm run out")
    asked = parser.parse_args()
    spec = read_spec(asked.spec) if asked.spec else parse_spec(_DEFAULT)
    choose = random.Random(asked.seed)
    ray.init(address="local", num_cpus=12, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    folder = tempfile.mkdtemp(prefix="raysync-chaos-")
    job = submit(spec, storage_path=folder)
    struck = []
    for _ in range(asked.faults):
        settled(job)
        time.sleep(asked.every_s)
        struck.append(strike(job, choose, asked.frozen_s))
    settled(job)
    job.stop("enough")
    job.wait(120)
    result = job.result()
    job.forget()
    records = result.records()
    decided = [record for record in records if record.kind == "decision"]
    begins_s = next(record.data["at_s"] - record.time_s for record in records if record.kind == "state")
    steps_s = [begins_s + record.time_s for record in decided]
    table: dict[tuple[str, str], list[Strike]] = defaultdict(list)
    for role, kind, began_s, took_s in struck:
        table[role, kind].append(Strike(role, kind, stall_s(steps_s, began_s, began_s + took_s), took_s))
    print(
        f"{'role':12} {'fault':8} {'times':>5} {'stall, median':>14} {'worst':>7} {'all there, median':>18} {'worst':>7}"
    )
    for (role, kind), found in sorted(table.items()):
        stalls, back = [one.stall_s for one in found], [one.recovery_s for one in found]
        print(
            f"{role:12} {kind:8} {len(found):5} {median(stalls):12.2f} s {max(stalls):5.2f} s "
            f"{median(back):16.2f} s {max(back):5.2f} s"
        )
    steps = [record.step for record in decided]
    lost, doubled = len({*range(len({*steps}))} - {*steps}), len(steps) - len({*steps})
    print(f"{len(steps)} steps; lost: {lost}, decided twice: {doubled}; it ended {result.state}")
    if not asked.no_calm:
        draw(Path("out/chaos.png"), losses(records), calm(spec, len(steps), folder), asked.faults)
    ray.shutdown()
    return 0 if (lost, doubled, result.state) == (0, 0, "STOPPED") else 1


if __name__ == "__main__":
    sys.exit(main())

"""Breaks a real job on Ray on purpose: random kills and freezes of its processes and of a node, and what they cost.

python -m tests.chaos                          digits, SelSync and onebit, 20 faults
python -m tests.chaos job.yaml --faults 50 --seed 1 --every-s 5
python -m tests.chaos --node                   a second node, which is killed and frozen, too
python -m tests.chaos --goodput --minutes 10   samples trained with a fault every 30 s over those of a calm run

It prints, per role and kind of fault, how long the others stood still and how long until all was as before (median and
worst), what was lost (steps that were decided on twice or never), and all of it as a JSON line. The loss is saved as a
picture beside a calm run's. A node that stands still and wakes is a part of the cluster that was cut off for a while.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import ray

from actors import Job, submit
from raysync.events import Event, Metrics
from raysync.spec import JobSpec, parse_spec, read_spec
from tests.ray_nodes import Nodes
from tests.strikes import Strike, begins_s, settled, strike, told_once, with_stall, worker_steps

ROLES = ("worker", "stage", "shard", "backup", "coordinator", "controller")
_DEFAULT: dict[str, Any] = {
    "name": "chaos",
    "task": {"kind": "custom", "entrypoint": "tests.drowsy:Drowsy", "args": {"nap_s": 0.03}},
    "strategy": {"kind": "selsync"},
    "compression": {"push": {"kind": "onebit"}, "pull": {"kind": "onebit"}},
    "optimizer": {"kind": "sgd", "lr": 0.05, "momentum": 0.9},
    "scale": {"workers": 4, "max_workers": 5, "shards": 2, "cpus_per_worker": 0.5},
    "budget": {"steps": 1_000_000},
}


def losses(records: Sequence[Event]) -> list[tuple[int, float]]:
    """Return the training loss by step."""
    found = [(record.step, record.body.values) for record in records if isinstance(record.body, Metrics)]
    return [(step, values["train/loss"]) for step, values in found if values.get("train/loss") is not None]  # type: ignore[misc]


def ended(job: Job) -> Any:
    """End a job; return what it came to."""
    job.stop("enough")
    job.wait(120)
    result = job.result()
    job.forget()
    return result


def calm(spec: JobSpec, steps: int, folder: str) -> list[tuple[int, float]]:
    """Return the losses of a run of so many steps in which nothing happens."""
    quiet = spec.model_copy(update={"budget": spec.budget.model_copy(update={"steps": steps})})
    job = submit(quiet, storage_path=folder)
    job.wait(3600)
    records = job.result().records()
    job.forget()
    return losses(records)


def draw(path: Path, curves: dict[str, list[tuple[int, float]]]) -> None:
    """Save losses as a picture, if there is something to draw with."""
    try:
        from matplotlib import pyplot
    except ImportError:
        return
    figure, axes = pyplot.subplots(figsize=(8, 4))
    for label, points in curves.items():
        axes.plot(*zip(*points, strict=True), label=label, alpha=0.7, linewidth=0.8)
    axes.set_xlabel("step")
    axes.set_ylabel("training loss")
    axes.set_yscale("log")
    axes.legend()
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=120, bbox_inches="tight")
    print(f"saved {path}")


def table(struck: Sequence[Strike]) -> list[dict[str, Any]]:
    """Return, per role and kind of fault, how long the others stood still, and how long until all was as before."""
    found: dict[tuple[str, str], list[Strike]] = defaultdict(list)
    for one in struck:
        found[one.role, one.kind].append(one)
    rows = []
    for (role, kind), ones in sorted(found.items()):
        stalls, back = [one.stall_s for one in ones], [one.recovery_s for one in ones]
        rows.append(
            {
                "role": role,
                "fault": kind,
                "times": len(ones),
                "stall_median_s": round(median(stalls), 2),
                "stall_worst_s": round(max(stalls), 2),
                "all_there_median_s": round(median(back), 2),
                "all_there_worst_s": round(max(back), 2),
            }
        )
    return rows


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print a table."""
    print(f"{'role':12} {'fault':8} {'times':>5} {'stall, median':>14} {'worst':>8} {'all there':>10} {'worst':>8}")
    for row in rows:
        role, kind, times, *costs = row.values()
        print(f"{role:12} {kind:8} {times:5} {costs[0]:12.2f} s {costs[1]:6.2f} s {costs[2]:8.2f} s {costs[3]:6.2f} s")


def break_job(spec: JobSpec, asked: argparse.Namespace, folder: str, nodes: Nodes | None) -> int:
    """Run a job, strike it so often, and tell what it cost."""
    choose, spares = random.Random(asked.seed), spec.scale.spares
    roles = (*(asked.roles.split(",") if asked.roles else ROLES), *(("node",) if nodes else ()))
    if nodes is not None:
        join(nodes)
    job = submit(spec, storage_path=folder)
    struck = []
    for _ in range(asked.faults):
        if nodes is not None and nodes.last is None:
            join(nodes)
        settled(job, spares)
        time.sleep(asked.every_s)
        struck.append(strike(job, choose, asked.frozen_s, roles, nodes, spares))
    settled(job, spares)
    result = ended(job)
    records = result.records()
    zero_s = begins_s(records)
    steps_s = [zero_s + record.time_s for record in records if record.kind == "decision"]
    rows = table([with_stall(one, steps_s) for one in struck])
    show(rows)
    lost, doubled = told_once(records)
    print(f"{len(steps_s)} steps; lost: {lost}, decided twice: {doubled}; it ended {result.state}")
    told = {"faults": rows, "steps": len(steps_s), "lost": lost, "doubled": doubled, "ended": result.state}
    print(json.dumps({"bench": "chaos", "seed": asked.seed, "cpus": os.cpu_count(), "spares": spares, **told}))
    if not asked.no_calm:
        curves = {f"{asked.faults} faults": losses(records), "calm": calm(spec, len(steps_s), folder)}
        draw(Path("out/chaos.png"), curves)
    return 0 if (lost, doubled, result.state) == (0, 0, "STOPPED") else 1


def join(nodes: Nodes) -> None:
    """Start a node that joins this Ray."""
    nodes.start(f"--address={ray.get_runtime_context().gcs_address}", "--num-cpus=4")


def trained(spec: JobSpec, asked: argparse.Namespace, folder: str, *, is_struck: bool) -> tuple[int, Any, list[str]]:
    """Run a job for so long; return how many batches it has trained, what it came to, and what struck it."""
    choose, spares, struck = random.Random(asked.seed), spec.scale.spares, list[str]()
    roles = asked.roles.split(",") if asked.roles else ROLES
    job = submit(spec, storage_path=folder)
    settled(job, spares)
    from_s = time.time()
    to_s = from_s + 60 * asked.minutes
    while is_struck and time.time() + asked.every_s < to_s:
        time.sleep(max(0.0, from_s + asked.every_s * (len(struck) + 0.5) - time.time()))
        one = strike(job, choose, asked.frozen_s, roles, None, spares)
        struck.append(f"{one.kind} {one.role}")
    time.sleep(max(0.0, to_s - time.time()))
    result = ended(job)
    return worker_steps(result.records(), from_s, to_s), result, struck


def goodput(spec: JobSpec, asked: argparse.Namespace, folder: str) -> int:
    """Compare what is trained under faults, without and with a spare, to a calm run of the same length."""
    if not asked.every_s:
        asked.every_s = 30.0
    quiet, result, _ = trained(spec, asked, folder, is_struck=False)
    curves, ratios = {"calm": losses(result.records())}, {}
    for spares in (0, 1):
        scale = spec.scale.model_copy(update={"spares": spares})
        many, result, struck = trained(spec.model_copy(update={"scale": scale}), asked, folder, is_struck=True)
        lost, doubled = told_once(result.records())
        ratios[spares] = round(many / quiet, 4)
        curves[f"{len(struck)} faults, {spares} spares"] = losses(result.records())
        told = {"spares": spares, "goodput": ratios[spares], "batches": many, "calm": quiet, "faults": struck}
        told |= {"minutes": asked.minutes, "every_s": asked.every_s, "lost": lost, "doubled": doubled}
        print(json.dumps({"bench": "goodput", "seed": asked.seed, "cpus": os.cpu_count(), **told}), flush=True)
    draw(Path("out/goodput.png"), curves)
    return 0


def main() -> int:
    """Run a job and break it."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("spec", nargs="?", help="a job file; its budget should be long (default: digits)")
    parser.add_argument("--faults", type=int, default=20, help="how many (default 20)")
    parser.add_argument("--seed", type=int, default=1, help="which and when (default 1)")
    parser.add_argument("--every-s", type=float, default=0.0, help="seconds between two (2; with --goodput 30)")
    parser.add_argument("--frozen-s", type=float, default=3.0, help="how long one is frozen (default 3)")
    parser.add_argument("--roles", help=f"what is struck, with commas between (default: all of {', '.join(ROLES)})")
    parser.add_argument("--spares", type=int, help="workers that stand by")
    parser.add_argument("--node", action="store_true", help="start a second node, and strike it, too")
    parser.add_argument("--goodput", action="store_true", help="measure what is trained under faults")
    parser.add_argument("--minutes", type=float, default=10.0, help="with --goodput: how long each run is (default 10)")
    parser.add_argument("--no-calm", action="store_true", help="leave the calm run out")
    asked = parser.parse_args()
    spec = read_spec(asked.spec) if asked.spec else parse_spec(_DEFAULT)
    if asked.spares is not None:
        spec = spec.model_copy(update={"scale": spec.scale.model_copy(update={"spares": asked.spares})})
    ray.init(address="local", num_cpus=12, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    folder = tempfile.mkdtemp(prefix="raysync-chaos-")
    nodes = Nodes(Path(folder), {**os.environ, "TMPDIR": folder}) if asked.node else None
    try:
        if asked.goodput:
            return goodput(spec, asked, folder)
        asked.every_s = asked.every_s or 2.0
        return break_job(spec, asked, folder, nodes)
    finally:
        if nodes is not None:
            nodes.end()
        ray.shutdown()


if __name__ == "__main__":
    sys.exit(main())

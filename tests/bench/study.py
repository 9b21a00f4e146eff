"""The search for the compression that pays, as a user runs it, and whether what it recommends keeps its word.

    python -m tests.bench study

Runs `raysync tune compression_ratio`, checks its front, and runs the recommended job with three seeds it has not seen and
the dense job beside them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from raysync.study import State
from raysync.study.front import dominates
from raysync.study.outcome import scored
from tests.bench.record import record
from tests.ray_nodes import BIN
from tune_configs import load
from tune_configs.store import StudyStore

UNSEEN = (101, 102, 103)


def main() -> int:
    """Run the study and what it recommends."""
    with tempfile.TemporaryDirectory() as place:
        started_s = time.monotonic()
        told = _run("tune", "compression_ratio", "--storage", f"{place}/studies")
        wall_s = time.monotonic() - started_s
        store = StudyStore(Path(told["folder"]))
        spec, trials = store.spec(), store.trials()
        points = {point.number: point for point in scored(spec, trials)}
        front = [points[number] for number in told["front"]]
        pick = yaml.safe_load(Path(told["picks"]["smallest"]["file"]).read_text())
        dense = load("compression_ratio").dense.model_dump(mode="json")
        found = [_job({**pick, "seed": seed}, place) for seed in UNSEEN]
        full = _job(dense, place)
        record(
            "study",
            trials=len(trials),
            wall_s=wall_s,
            wall_bar_s=240,
            overhead=told["overhead"],
            overhead_bar=1.15,
            overhead_over_events=told["took_s"] / (_spans_s(Path(told["folder"]) / "jobs") / told["concurrency"]),
            stopped_early=sum(trial.state is State.STOPPED for trial in trials),
            front=told["front"],
            is_front_sound=not any(dominates(other, one) for one in front for other in points.values()),
            sentence=told["reason"],
            floor=spec.floor.bound,
            unseen_seeds=[round(metrics["eval/accuracy"], 4) for metrics in found],
            bytes_of_dense=max(map(_sent, found)) / _sent(full),
            bytes_bar=0.01,
        )
    return 0


def _job(spec: dict[str, Any], place: str) -> dict[str, float]:
    path = Path(place) / "job.json"
    path.write_text(json.dumps(spec))
    metrics: dict[str, float] = _run("run", str(path), "--storage", f"{place}/jobs")["metrics"]
    return metrics


def _spans_s(jobs: Path) -> float:
    """Return how long all jobs took from their first event to their last: less than from submission to their end."""
    total_s = 0.0
    for path in jobs.glob("*/events.jsonl"):
        times = [json.loads(line)["time_s"] for line in path.read_text().splitlines()]
        total_s += max(times) - min(times)
    return total_s


def _sent(metrics: dict[str, float]) -> float:
    return metrics["comm/bytes_up"] + metrics["comm/bytes_down"]


def _run(*words: str) -> dict[str, Any]:
    """Run a command of raysync and return the last thing it printed."""
    answer = subprocess.run([BIN / "raysync", *words, "--json"], capture_output=True, text=True, timeout=600)
    if answer.returncode != 0:
        raise SystemExit(f"raysync {' '.join(words)}: {answer.stderr}{answer.stdout[-2000:]}")
    last: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return last


if __name__ == "__main__":
    sys.exit(main())

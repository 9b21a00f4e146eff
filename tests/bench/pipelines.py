"""Pipelines over long and over slow lines.

    python -m tests.bench pipelines [--only=latency|net] [--steps=...]

`latency`: four stages on this machine, every message 20 ms under way: raysync's asynchronous schedule against its `gpipe`
with as many microbatches as stages. `net`: two stages on hosts of 100 Mbit/s, against `torch.distributed.pipelining`'s
1F1B on gloo with the same stages and microbatches. Both count samples trained per second, start and end left out.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raysync.spec import parse_spec
from tests.bench.local_ray import local_ray, run, steps_per_s
from tests.bench.record import record
from tests.bench.slow_hosts import HOSTS, cannot, cluster, run_job, slow_hosts

MICROBATCH = 8
MICROBATCHES = 4
"""As many as the synchronous schedules cut a batch into; the asynchronous one steps after each."""
TASK = {"kind": "char_lm", "width": 128, "depth": 5, "context": 64, "corpus_bytes": 200_000}
SMALL = {"kind": "char_lm", "width": 16, "depth": 4, "heads": 2, "context": 16, "corpus_bytes": 50_000}
LOCAL = {"kind": "local_sgd", "sync_every": 100_000}
_WARM = 0.3
_TORCH_PORT = 29511


def main() -> int:
    """Run both parts, or one."""
    options = dict(argument.removeprefix("--").split("=") for argument in sys.argv[1:] if "=" in argument)
    only = options.get("only")
    if only != "net":
        with local_ray() as folder:
            record("pipelines.latency", **long_lines(folder, int(options.get("steps", 40))))
    if only != "latency":
        reason = cannot()
        if reason:
            print(f"the part on slow hosts stops: {reason}")
            return 0
        with tempfile.TemporaryDirectory() as folder, slow_hosts(), cluster(folder) as env:
            record("pipelines.net", **slow_lines(folder, env, int(options.get("steps", 40))))
    return 0


def long_lines(folder: str, batches: int) -> dict[str, float]:
    """Return the samples per second of both schedules, 20 ms apart, and their ratio."""
    stages, found = 4, {}
    for name, schedule in (
        ("gpipe", {"kind": "gpipe", "microbatches": stages}),
        ("async", {"kind": "async_one_f_one_b", "slack": 1}),
    ):
        spec = {**_job(SMALL, stages, schedule, batches), "transport": {"latency_ms": 20}}
        found[name] = spec["data"]["batch_size"] * steps_per_s(run(parse_spec(spec), folder))
    return {**{f"{name}_samples_per_s": rate for name, rate in found.items()}, "ratio": found["async"] / found["gpipe"]}


def slow_lines(folder: str, env: dict[str, str], batches: int) -> dict[str, float]:
    """Return the samples per second of both systems on two hosts of 100 Mbit/s, and their ratio."""
    stages, found = 2, {}
    synchronous = _job(TASK, stages, {"kind": "one_f_one_b", "microbatches": MICROBATCHES}, batches)
    found["torch_1f1b"] = _torch(folder, env, synchronous)
    for name, spec in (
        ("async", _job(TASK, stages, {"kind": "async_one_f_one_b", "recompute": False, "slack": 1}, batches)),
        ("one_f_one_b", synchronous),
    ):
        told = [r for r in run_job(spec, folder, env) if r["kind"] == "metrics" and "train/loss" in r["data"]]
        found[name] = _rate([(r["step"], r["time_s"]) for r in told], spec["data"]["batch_size"])
    rates = {f"{name}_samples_per_s": rate for name, rate in found.items()}
    return {**rates, "ratio": found["async"] / found["torch_1f1b"]}


def _job(task: dict[str, Any], stages: int, schedule: dict[str, Any], batches: int) -> dict[str, Any]:
    """Return a job of so many batches; the asynchronous schedule takes their microbatches one by one."""
    parts = schedule.get("microbatches", 1)
    steps = batches if parts > 1 else batches * MICROBATCHES
    return {
        "name": "pipelines",
        "task": task,
        "strategy": LOCAL,
        "schedule": schedule,
        "optimizer": {"kind": "adamw", "lr": 1e-3},
        "scale": {"workers": 1, "stages": stages, "cpus_per_worker": 1 if task is TASK else 0.25},
        "data": {"batch_size": MICROBATCH * parts},
        "budget": {"steps": steps},
        "eval": {"every": 100_000},
        "seed": 7,
    }


def _rate(told: Sequence[tuple[int | None, float]], batch_size: int) -> float:
    """Return samples per second, given when steps were told, without the first third of them."""
    timed = told[int(_WARM * len(told)) :]
    return (len(timed) - 1) * batch_size / (timed[-1][1] - timed[0][1])


def _torch(folder: str, env: dict[str, str], spec: dict[str, Any]) -> float:
    path = Path(folder) / "torch.json"
    path.write_text(json.dumps(spec))
    hosts = [host for host in HOSTS if host != "rsync-head"]
    where = f"{HOSTS[hosts[0]]}:{_TORCH_PORT}"
    command = [sys.executable, "-m", "tests.bench.torch_pipeline"]
    ranks = [
        subprocess.Popen(
            ["ip", "netns", "exec", host, *command, str(rank), where, str(path)],
            env={**env, "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, host in enumerate(hosts)
    ]
    try:
        answers = [rank.communicate(timeout=600)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return float(json.loads(answers[-1].splitlines()[-1])["samples_per_s"])


if __name__ == "__main__":
    sys.exit(main())

"""`make bench-net`: three hosts in network namespaces of their own, each behind a link of 100 Mbit/s, real Ray nodes inside.

Then time and bytes to a target beside plain torch programs, on slow, uneven and fast links (`tests.bench.to_target`). Needs
root and `ip netns`; says so and stops where it has neither. Bytes are counted on the hosts' interfaces.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from tests.bench import to_target
from tests.bench.record import record
from tests.bench.slow_hosts import HOSTS, MBIT_PER_S, cannot, cluster, run_job, slow_hosts

TARGET = 0.9
DEAR_TARGET = 0.93
HIDDEN = (1400, 1400)
ONEBIT = {"push": {"kind": "onebit"}, "pull": {"kind": "onebit"}}
CASES: dict[str, dict[str, Any]] = {
    "bsp dense": {"strategy": {"kind": "bsp"}},
    "bsp onebit": {"strategy": {"kind": "bsp"}, "compression": ONEBIT},
    "selsync onebit": {"strategy": {"kind": "selsync"}, "compression": ONEBIT},
}
DEAR: dict[str, Any] = {
    "task": {"kind": "custom", "entrypoint": "tests.bench.dear_evaluation:DearEvaluation"},
    "strategy": {"kind": "local_sgd", "sync_every": 10},
    "compression": ONEBIT,
    "budget": {"steps": 301},
    "eval_every": 50,
}
"""A job whose evaluations cost as much as its steps; with the older name of the field, so that older code runs it too."""


def main() -> int:
    """Measure and print one line per strategy."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--only", choices=("strategies", "evaluation", "target"), help="one part of it")
    arguments = parser.parse_args()
    steps, only = arguments.steps, arguments.only
    reason = cannot()
    if reason:
        print(f"bench-net stops: {reason}")
        return 0
    if only != "target":
        with tempfile.TemporaryDirectory() as folder, slow_hosts(), cluster(folder) as env:
            idle = _idle_bytes_per_s()
            for name, fields in CASES.items() if only != "evaluation" else ():
                _measure(name, fields, steps, folder, env, idle)
            if only != "strategies":
                _measure_evaluation(folder, env)
    return to_target.main() if only in (None, "target") else 0


def _measure_evaluation(folder: str, env: dict[str, str]) -> None:
    """Measure the time to a target where an evaluation, made every 50 steps, is as dear as 50 steps."""
    common = {"name": "net", "optimizer": {"kind": "sgd", "lr": 0.2}, "scale": {"workers": 2, "shards": 2}, "seed": 7}
    records = run_job({**common, **DEAR}, folder, env)
    told = [r for r in records if r["kind"] == "metrics"]
    first_s = next(r["time_s"] for r in told if "train/loss" in r["data"])
    reached = (r["time_s"] for r in told if r["data"].get("eval/accuracy", 0) >= DEAR_TARGET)
    actors = records[-1]["runs"]["actors"]
    steps = [r for r in told if "train/loss" in r["data"]]
    all_steps_s = steps[-1]["time_s"] - first_s
    waited_s = sum(r["data"].get(name, 0.0) for r in steps for name in ("sync/wait_s", "time/sync_s"))
    record(
        "net.evaluation",
        target=DEAR_TARGET,
        to_target_s=next((time_s - first_s for time_s in reached), None),
        all_steps_s=all_steps_s,
        curve=[(r["step"], round(r["data"]["eval/accuracy"], 3)) for r in told if "eval/accuracy" in r["data"]],
        busy=1 - waited_s / all_steps_s,
        busy_bar=0.9,
        cpu={name: round(facts["busy_ratio"], 2) for name, facts in actors.items() if facts.get("busy_ratio")},
    )


def _measure(name: str, fields: dict[str, Any], steps: int, folder: str, env: dict[str, str], idle: float) -> None:
    spec = {
        "name": "net",
        "task": {"kind": "digits", "hidden": HIDDEN},
        "optimizer": {"kind": "sgd", "lr": 0.2},
        "scale": {"workers": 2, "shards": 2},
        "budget": {"steps": steps},
        "eval": {"every": 10},
        "seed": 7,
        "transport": "direct",
        **fields,
    }
    before, started_s = _sent_bytes(), time.monotonic()
    records = run_job(spec, folder, env)
    wall_s, after = time.monotonic() - started_s, _sent_bytes()
    metrics = [r for r in records if r["kind"] == "metrics" and "train/loss" in r["data"]]
    on_wire = sum(after[host] - before[host] for host in HOSTS)
    reported = sum(facts["network_bytes_sent"] or 0 for facts in records[-1]["runs"]["actors"].values())
    reached = next((r["time_s"] for r in metrics if r["data"].get("eval/accuracy", 0) >= TARGET), None)
    step_s = (metrics[-1]["time_s"] - metrics[5]["time_s"]) / (len(metrics) - 6)
    rounds = [r["data"]["time/sync_s"] + r["data"]["time/encode_s"] for r in metrics if "time/sync_s" in r["data"]]
    is_dense = "compression" not in fields
    busiest = max(after[host] - before[host] for host in ("rsync-a", "rsync-b"))
    record(
        "net",
        strategy=name,
        parameters=64 * HIDDEN[0] + HIDDEN[0] * (HIDDEN[1] + 1) + HIDDEN[1] * 11 + 10,
        step_ms=1e3 * step_s,
        to_target_s=None if reached is None else reached - metrics[0]["time_s"],
        target=TARGET,
        accuracy=records[-1]["metrics"]["eval/accuracy"],
        interface_mb=on_wire / 1e6,
        ray_idle_mb=idle * wall_s / 1e6,
        reported_mb=reported / 1e6,
        interface_to_reported=(on_wire - idle * wall_s) / reported,
        round_ms=1e3 * statistics.median(rounds),
        link_utilisation=busiest / len(rounds) / (statistics.median(rounds) * MBIT_PER_S * 125_000)
        if is_dense
        else None,
        lssr=records[-1]["metrics"].get("sync/lssr"),
    )


def _sent_bytes() -> dict[str, int]:
    """Return what each host has sent, from its interface's own counter."""
    counter = "/sys/class/net/eth0/statistics/tx_bytes"
    found = {}
    for host in HOSTS:
        answer = subprocess.run(
            ["ip", "netns", "exec", host, "cat", counter], capture_output=True, text=True, check=True
        )
        found[host] = int(answer.stdout)
    return found


def _idle_bytes_per_s() -> float:
    """Return what the nodes send each second with no job: Ray's own traffic."""
    before = _sent_bytes()
    time.sleep(10)
    after = _sent_bytes()
    return sum(after[host] - before[host] for host in HOSTS) / 10


if __name__ == "__main__":
    sys.exit(main())

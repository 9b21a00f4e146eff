"""`make bench-net`: three hosts in network namespaces of their own, each behind a link of 100 Mbit/s, real Ray nodes inside.

Needs root and `ip netns`; says so and stops where it has neither. Bytes are counted on the hosts' interfaces.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.bench.record import record
from tests.ray_nodes import BIN, Nodes, token_env

MBIT_PER_S = 100
HOSTS = {"rsync-head": "10.77.0.1", "rsync-a": "10.77.0.2", "rsync-b": "10.77.0.3"}
BRIDGE = "rsync-br"
PORT = 6399
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
    parser.add_argument("--only", choices=("strategies", "evaluation"), help="the one part or the other")
    arguments = parser.parse_args()
    steps, only = arguments.steps, arguments.only
    reason = _cannot()
    if reason:
        print(f"bench-net stops: {reason}")
        return 0
    with tempfile.TemporaryDirectory() as folder, _hosts(), _cluster(folder) as env:
        idle = _idle_bytes_per_s()
        for name, fields in CASES.items() if only != "evaluation" else ():
            _measure(name, fields, steps, folder, env, idle)
        if only != "strategies":
            _measure_evaluation(folder, env)
    return 0


def _cannot() -> str | None:
    if os.geteuid() != 0:
        return "it makes network namespaces and needs root for that"
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "there is no `ip` and `tc` here; install iproute2"
    if subprocess.run(["ip", "netns", "add", "rsync-probe"], capture_output=True).returncode != 0:
        return "`ip netns add` is not allowed here"
    subprocess.run(["ip", "netns", "del", "rsync-probe"], check=True)
    return None


@contextlib.contextmanager
def _hosts() -> Iterator[None]:
    """Make a bridge and three hosts, each with one interface held to the rate in both directions."""
    _unmake()
    try:
        _run(f"ip link add {BRIDGE} type bridge")
        _run(f"ip link set {BRIDGE} up")
        for host, address in HOSTS.items():
            _run(f"ip netns add {host}")
            _run(f"ip link add {host}-o type veth peer name eth0 netns {host}")
            _run(f"ip link set {host}-o master {BRIDGE}")
            _run(f"ip link set {host}-o up")
            _run(f"ip -n {host} link set lo up")
            _run(f"ip -n {host} addr add {address}/24 dev eth0")
            _run(f"ip -n {host} link set eth0 up")
            shape = f"root tbf rate {MBIT_PER_S}mbit burst 128kb latency 100ms"
            _run(f"tc qdisc add dev {host}-o {shape}")
            _run(f"tc -n {host} qdisc add dev eth0 {shape}")
        yield
    finally:
        _unmake()


def _unmake() -> None:
    for host in HOSTS:
        subprocess.run(["ip", "netns", "del", host], capture_output=True)
        subprocess.run(["ip", "link", "del", f"{host}-o"], capture_output=True)
    subprocess.run(["ip", "link", "del", BRIDGE], capture_output=True)


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True)


@contextlib.contextmanager
def _cluster(folder: str) -> Iterator[dict[str, str]]:
    """Start a Ray node on every host; workers fit only on the two that are not the head."""
    env = {**token_env(Path(folder) / "home"), "PYTHONPATH": os.getcwd()}
    nodes, temp = Nodes(Path(folder), env), tempfile.mkdtemp(prefix="rsn", dir="/tmp")
    try:
        for host, address in HOSTS.items():
            own = ["--head", f"--port={PORT}", f"--temp-dir={temp}", "--include-dashboard=false", "--num-cpus=0"]
            where = own if host == "rsync-head" else [f"--address={HOSTS['rsync-head']}:{PORT}", "--num-cpus=1"]
            nodes.start(f"--node-ip-address={address}", *where, inside=("ip", "netns", "exec", host))
        yield env
    finally:
        nodes.end()
        shutil.rmtree(temp, ignore_errors=True)


def _measure_evaluation(folder: str, env: dict[str, str]) -> None:
    """Measure the time to a target where an evaluation, made every 50 steps, is as dear as 50 steps."""
    common = {"name": "net", "optimizer": {"kind": "sgd", "lr": 0.2}, "scale": {"workers": 2, "shards": 2}, "seed": 7}
    records = _records({**common, **DEAR}, folder, env)
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


def _records(spec: dict[str, Any], folder: str, env: dict[str, str]) -> list[dict[str, Any]]:
    """Run a job from the head and return what it printed."""
    path = Path(folder) / "job.json"
    path.write_text(json.dumps(spec))
    run = ["ip", "netns", "exec", "rsync-head", BIN / "raysync", "run", path, "--json"]
    run += ["--address", f"{HOSTS['rsync-head']}:{PORT}", "--storage", Path(folder) / "results"]
    answer = subprocess.run(list(map(str, run)), env=env, capture_output=True, text=True, timeout=900)
    if answer.returncode != 0:
        raise SystemExit(f"{spec['name']}: {answer.stderr}{answer.stdout[-2000:]}")
    return [json.loads(line) for line in answer.stdout.splitlines()]


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
    records = _records(spec, folder, env)
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

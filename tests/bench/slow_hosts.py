"""Hosts in network namespaces of their own, each behind a slow link, with real Ray nodes inside."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.ray_nodes import BIN, Nodes, token_env

MBIT_PER_S = 100
HOSTS = {"rsync-head": "10.77.0.1", "rsync-a": "10.77.0.2", "rsync-b": "10.77.0.3"}
BRIDGE = "rsync-br"
PORT = 6399


def cannot() -> str | None:
    if os.geteuid() != 0:
        return "it makes network namespaces and needs root for that"
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "there is no `ip` and `tc` here; install iproute2"
    if subprocess.run(["ip", "netns", "add", "rsync-probe"], capture_output=True).returncode != 0:
        return "`ip netns add` is not allowed here"
    subprocess.run(["ip", "netns", "del", "rsync-probe"], check=True)
    return None


@contextlib.contextmanager
def slow_hosts(rates: Mapping[str, float] | None = None) -> Iterator[None]:
    """Make a bridge and three hosts, each with one interface held to a rate in both directions: 100 Mbit/s, or what
    `rates` say of them, 0 for as much as goes.
    """
    rates = rates or {}
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
            rate = rates.get(host, MBIT_PER_S)
            if rate:
                shape = f"root tbf rate {rate:g}mbit burst 128kb latency 100ms"
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
def cluster(folder: str, words: Mapping[str, Mapping[str, str]] | None = None) -> Iterator[dict[str, str]]:
    """Start a Ray node on every host, with `words` of its own in its environment; workers fit only on the two that are
    not the head.
    """
    env = {**token_env(Path(folder) / "home"), "PYTHONPATH": os.getcwd()}
    nodes, temp = Nodes(Path(folder), env), tempfile.mkdtemp(prefix="rsn", dir="/tmp")
    try:
        for host, address in HOSTS.items():
            own = ["--head", f"--port={PORT}", f"--temp-dir={temp}", "--include-dashboard=false", "--num-cpus=0"]
            where = own if host == "rsync-head" else [f"--address={HOSTS['rsync-head']}:{PORT}", "--num-cpus=1"]
            own_words = [f"{name}={value}" for name, value in (words or {}).get(host, {}).items()]
            inside = ("ip", "netns", "exec", host, "env", *own_words)
            nodes.start(f"--node-ip-address={address}", *where, inside=inside)
        yield env
    finally:
        nodes.end()
        shutil.rmtree(temp, ignore_errors=True)


def run_job(spec: dict[str, Any], folder: str, env: dict[str, str]) -> list[dict[str, Any]]:
    """Run a job from the head and return what it printed."""
    path = Path(folder) / "job.json"
    path.write_text(json.dumps(spec))
    run = ["ip", "netns", "exec", "rsync-head", BIN / "raysync", "run", path, "--json"]
    run += ["--address", f"{HOSTS['rsync-head']}:{PORT}", "--storage", Path(folder) / "results"]
    answer = subprocess.run(list(map(str, run)), env=env, capture_output=True, text=True, timeout=900)
    if answer.returncode != 0:
        raise SystemExit(f"{spec['name']}: {answer.stderr}{answer.stdout[-2000:]}")
    return [json.loads(line) for line in answer.stdout.splitlines()]

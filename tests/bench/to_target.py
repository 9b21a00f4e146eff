"""Time and bytes to a target accuracy on slow, uneven and fast links: ours beside plain torch programs, evaluation counted
for all. A part of `make bench-net`.

    python -m tests.bench.to_target [--link=100,20,uneven,fast] [--side=torch,ours] [--only=NAME;...] [--out=FILE] [--table=FILE]

Every system has the settings that suit it: the torch programs that average parameters the best of three intervals. What
would take longer than minutes (DDP on slow links) is timed over some steps, and its steps to the target are counted where
it is fast: the same bits. `--out` keeps the lines, `--table` prints a table of kept ones and measures nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.bench.images import NUM_EVAL, NUM_TRAIN, SLOW
from tests.bench.record import compare, record, table
from tests.bench.slow_hosts import HOSTS, cannot, cluster, run_job, slow_hosts
from tests.mnist_like import write_mnist_like

TARGET, EVERY, MOST_STEPS, SAMPLED_STEPS = 0.92, 50, 601, 25
INTERVALS = (10, 25, 50)
SGD = {"kind": "sgd", "lr": 0.05, "momentum": 0.9}
BATCH = 64
SLOW_S = "0.015"
"""A worker with it computes at half speed: a step takes as long."""
ONEBIT = {"push": {"kind": "onebit"}, "pull": {"kind": "onebit"}}
A, B = "rsync-a", "rsync-b"


class Link(NamedTuple):
    """What the hosts are like."""

    rates: Mapping[str, float]
    """Megabits per second; 0 for as much as goes."""
    is_uneven: bool = False


LINKS = {
    "100": Link({}),
    "20": Link(dict.fromkeys(HOSTS, 20)),
    "uneven": Link({B: 20}, is_uneven=True),
    "fast": Link(dict.fromkeys(HOSTS, 0)),
}
LOCAL = {"kind": "local_sgd", "sync_every": 25}
OURS: dict[str, dict[str, Any]] = {
    "local_sgd": {"strategy": LOCAL, "compression": ONEBIT},
    "local_sgd, late": {"strategy": {**LOCAL, "landing": "late"}, "compression": ONEBIT},
    "selsync": {"strategy": {"kind": "selsync", "overlap": True}, "compression": ONEBIT},
}
UNEVEN: dict[str, dict[str, Any]] = {
    "bsp": {"strategy": {"kind": "bsp"}, "compression": ONEBIT},
    "local_sgd, dense": {"strategy": LOCAL},
    "local_sgd, dense, late": {"strategy": {**LOCAL, "landing": "late"}},
    "ssp": {"strategy": {"kind": "ssp", "staleness_bound": 3}, "compression": ONEBIT},
    "async_sparse": {"strategy": {"kind": "async_sparse", "sparse_fraction": 0.05}},
}
"""What goes beside those where hosts are uneven."""
GOALS = {"100": 2.0, "20": 3.0}
"""How many times as long the best torch program may take at the least."""
DDP_GOAL = 30.0
"""And DDP at 100 Mbit/s."""


def main() -> int:
    """Measure, print a line for each run and the table."""
    options = dict(argument.removeprefix("--").split("=", 1) for argument in sys.argv[1:] if "=" in argument)
    if "table" in options:
        report([json.loads(line) for line in Path(options["table"]).read_text().splitlines()])
        return 0
    reason = cannot()
    if reason:
        print(f"the comparison stops: {reason}")
        return 0
    links = options.get("link", ",".join(LINKS)).split(",")
    sides = options.get("side", "torch,ours").split(",")
    only = {*options["only"].split(";")} if "only" in options else None
    lines: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        images = str(write_mnist_like(Path(folder) / "images", NUM_TRAIN, NUM_EVAL))
        for link in links:
            if "torch" in sides:
                lines += _torch_rows(link, folder, images, only)
            if "ours" in sides:
                lines += _our_rows(link, folder, images, only)
    if "out" in options:
        with Path(options["out"]).open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
    report(lines)
    return 0


# Plain torch


def _torch_rows(link: str, folder: str, images: str, only: set[str] | None) -> Iterator[dict[str, Any]]:
    is_fast = link == "fast"
    with _hosts(link):
        for method in _wanted(("ddp", "ddp fp16"), only):
            steps = MOST_STEPS if is_fast else SAMPLED_STEPS
            found, sent = _torch(link, folder, images, method, steps, EVERY if is_fast else 0)
            yield _row(link, method, found, sent) if is_fast else _stretched(link, method, found, sent, folder, images)
        averaging = [f"{method} {interval}" for method in ("periodic", "post-local") for interval in INTERVALS]
        for name in _wanted(averaging, only):
            method, interval = name.split()
            found, sent = _torch(link, folder, images, method, MOST_STEPS, EVERY, int(interval))
            yield _row(link, name, found, sent)


def _wanted(names: Iterable[str], only: set[str] | None) -> list[str]:
    return [name for name in names if only is None or name in only]


def _torch(
    link: str, folder: str, images: str, method: str, steps: int, every: int, interval: int = 0
) -> tuple[dict[str, Any], float]:
    """Return what a torch program told, and the megabytes that the hosts have sent."""
    how = {"folder": images, "method": method, "interval": interval, "steps": steps, "every": every}
    how |= {"batch": BATCH, "lr": SGD["lr"], "momentum": SGD["momentum"], "seed": 7, "target": TARGET}
    path = Path(folder) / "peer.json"
    path.write_text(json.dumps(how))
    before, ranks = _sent_mb(), []
    for rank, host in enumerate((A, B)):
        slow = [f"{SLOW}={SLOW_S}"] if LINKS[link].is_uneven and host == B else []
        command = ["ip", "netns", "exec", host, "env", "GLOO_SOCKET_IFNAME=eth0", *slow, sys.executable, "-m"]
        command += ["tests.bench.torch_peer", str(rank), f"{HOSTS[A]}:29500", str(path)]
        env = {**os.environ, "PYTHONPATH": os.getcwd()}
        ranks.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    answers = [rank.communicate(timeout=600) for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit(f"{method}: {answers[0][1][-2000:]}{answers[1][1][-2000:]}")
    return json.loads(answers[0][0].splitlines()[-1]), _sent_mb() - before


def _row(link: str, name: str, found: dict[str, Any], sent_mb: float) -> dict[str, Any]:
    reached = next((time_s for _, accuracy, time_s in found["curve"] if accuracy >= TARGET), None)
    return _told(link, name, False, to_target_s=reached, sent_mb=sent_mb, steps=found["steps"], step_s=found["step_s"])


def _stretched(
    link: str, name: str, sample: dict[str, Any], sent_mb: float, folder: str, images: str
) -> dict[str, Any]:
    """Return a run as long as it would be: its steps to the target counted on no link at all, timed on this one."""
    whole = _on_loopback(folder, images, name)
    steps = whole["steps"]
    to_target_s = steps * sample["step_s"] + whole["evaluating_s"]
    mb = sent_mb / (sample["steps"] + 1) * (steps + 1)
    is_reached = whole["curve"][-1][1] >= TARGET
    facts = {"steps": steps, "step_s": sample["step_s"], "is_stretched": True}
    return _told(link, name, False, to_target_s=to_target_s if is_reached else None, sent_mb=mb, **facts)


def _on_loopback(folder: str, images: str, method: str) -> dict[str, Any]:
    """Return what a method tells where nothing is slow."""
    path = Path(folder) / "counted.json"
    how = {"folder": images, "method": method, "interval": 0, "steps": MOST_STEPS, "every": EVERY, "batch": BATCH}
    path.write_text(json.dumps({**how, "lr": SGD["lr"], "momentum": SGD["momentum"], "seed": 7, "target": TARGET}))
    command = [sys.executable, "-m", "tests.bench.torch_peer"]
    ranks = [
        subprocess.Popen([*command, str(rank), "127.0.0.1:29501", str(path)], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    answers = [rank.communicate(timeout=600)[0] for rank in ranks]
    found: dict[str, Any] = json.loads(answers[0].splitlines()[-1])
    return found


# Ours


def _our_rows(link: str, folder: str, images: str, only: set[str] | None) -> Iterator[dict[str, Any]]:
    words = {B: {SLOW: SLOW_S}} if LINKS[link].is_uneven else {}
    systems = {**OURS, **(UNEVEN if LINKS[link].is_uneven else {})}
    with _hosts(link), cluster(folder, words) as env:
        for name in _wanted(systems, only):
            yield _ours(link, name, systems[name], folder, env, images)


def _ours(
    link: str, name: str, fields: dict[str, Any], folder: str, env: dict[str, str], images: str
) -> dict[str, Any]:
    spec = {
        "name": "to-target",
        "task": {"kind": "custom", "entrypoint": "tests.bench.images:Images", "args": {"folder": images}},
        "optimizer": SGD,
        "data": {"batch_size": BATCH},
        "scale": {"workers": 2, "shards": 2},
        "budget": {"steps": MOST_STEPS, "target": {"metric": "eval/accuracy", "value": TARGET}},
        "eval": {"every": EVERY},
        "seed": 7,
        "transport": "direct",
        **fields,
    }
    before = _sent_mb()
    told = [line for line in run_job(spec, folder, env) if line["kind"] == "metrics"]
    sent_mb = _sent_mb() - before
    trained = [line for line in told if "train/loss" in line["data"]]
    reached = [line for line in told if line["data"].get("eval/accuracy", 0) >= TARGET]
    payload = [line["data"]["comm/bytes_up"] + line["data"]["comm/bytes_down"] for line in trained][-1]
    step_s = (trained[-1]["time_s"] - trained[0]["time_s"]) / max(1, trained[-1]["step"] - trained[0]["step"])
    to_target_s = reached[0]["time_s"] - trained[0]["time_s"] if reached else None
    steps = reached[0]["step"] if reached else trained[-1]["step"]
    facts = {"payload_mb": payload / 1e6, "staleness": trained[-1]["data"].get("staleness/mean")}
    return _told(link, name, True, to_target_s=to_target_s, sent_mb=sent_mb, steps=steps, step_s=step_s, **facts)


def _told(link: str, name: str, is_ours: bool, **facts: Any) -> dict[str, Any]:
    line = {"link": link, "system": name, "is_ours": is_ours, "target": TARGET, **facts}
    record("net.to_target", **line)
    return line


@contextmanager
def _hosts(link: str) -> Iterator[None]:
    with slow_hosts(LINKS[link].rates):
        time.sleep(0.5)
        yield


def _sent_mb() -> float:
    """Return what all hosts have sent, from their interfaces' own counters."""
    counter = "/sys/class/net/eth0/statistics/tx_bytes"
    found = (
        subprocess.run(["ip", "netns", "exec", host, "cat", counter], capture_output=True, text=True, check=True).stdout
        for host in HOSTS
    )
    return sum(map(int, found)) / 1e6


# The table


def report(lines: list[dict[str, Any]]) -> None:
    """Print every system on every link, and ours beside the best of the others."""
    print("\n| link | system | time to target | MB sent | steps | ms per step |\n|---|---|---|---|---|---|")
    for line in lines:
        time_s = "-" if line["to_target_s"] is None else f"{line['to_target_s']:.1f} s"
        mark = " (stretched)" if line.get("is_stretched") else ""
        who = f"**{line['system']}**" if line["is_ours"] else f"torch {line['system']}"
        numbers = f"{line['sent_mb']:.0f} | {line['steps']} | {1e3 * line['step_s']:.0f}"
        print(f"| {line['link']} | {who} | {time_s}{mark} | {numbers} |")
    for link in dict.fromkeys(line["link"] for line in lines):
        _compare(link, [line for line in lines if line["link"] == link and line["to_target_s"] is not None])
    print("\n" + table(), flush=True)


def _compare(link: str, lines: list[dict[str, Any]]) -> None:
    ours = [line for line in lines if line["is_ours"]]
    rivals = [line for line in lines if not line["is_ours"]]
    if not ours or not rivals:
        return
    best, other = (min(some, key=lambda line: float(line["to_target_s"])) for some in (ours, rivals))
    what = f"{link}: s to target, {best['system']} beside torch {other['system']}"
    facts = {"ours": best["to_target_s"], "rival": other["to_target_s"], "goal": GOALS.get(link, 1.0)}
    compare("net.to_target.best", what, **facts)
    compare("net.to_target.mb", f"{link}: MB of the two", ours=best["sent_mb"], rival=other["sent_mb"], goal=1.0)
    for line in rivals:
        if line["system"] == "ddp":
            goal = DDP_GOAL if link == "100" else 1.0
            what = f"{link}: s to target, {best['system']} beside DDP"
            compare("net.to_target.ddp", what, ours=best["to_target_s"], rival=line["to_target_s"], goal=goal)


if __name__ == "__main__":
    sys.exit(main())

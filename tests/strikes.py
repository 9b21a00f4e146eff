"""Processes of a real job on Ray, by role, to be killed or frozen; and what that cost, from the job's own history."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import ray

from actors import Job
from actors.job.actor_group import NAMESPACE
from raysync.events import Event
from raysync.ports import JobStatus
from tests.ray_nodes import Nodes

_UP_S = 60.0
_ASK_S = 20.0


class Strike(NamedTuple):
    """A fault, and what it cost."""

    role: str
    kind: str
    began_s: float
    recovery_s: float
    """Until the job was RUNNING again, with every process there."""
    stall_s: float = 0.0
    """The longest time without a step."""


def settled(job: Job, spares: int = 0) -> JobStatus:
    """Wait until the job runs as it should; return its status."""
    deadline_s, status = time.monotonic() + _UP_S, None
    while time.monotonic() < deadline_s:
        status = job.status()
        if status.state.is_terminal:
            raise SystemExit(f"the job ended: {status.state} {status.reason}")
        lives = [found.life for found in status.actors.values()]
        is_up = lives.count("alive") + lives.count("spare") == len(lives) and lives.count("spare") == spares
        if status.state == "RUNNING" and status.step > 5 and is_up:
            return status
        time.sleep(0.05)
    raise SystemExit(f"the job does not come up again within {_UP_S:.0f} s: {status}")


def processes(job: Job, status: JobStatus, nodes: Nodes | None = None) -> dict[str, dict[str, int]]:
    """Return the process ids of every role, by name."""
    controller = ray.get_actor(f"{job.id}:controller", namespace=NAMESPACE)
    ask: Any = lambda self: (os.getpid(), self._memory.servers)  # noqa: E731
    pid, servers = ray.get(controller.__ray_call__.remote(ask), timeout=_ASK_S)
    serving = {str(server) for server in servers}
    found: dict[str, dict[str, int]] = {"controller": {"controller": pid}}
    for name, actor in status.actors.items():
        role = name.partition("/")[0]
        if role == "shard" and name not in serving:
            role = "backup"
        if actor.life == "alive" and actor.pid is not None and role != "evaluator":
            found.setdefault(role, {})[name] = actor.pid
    if nodes is not None and nodes.last is not None:
        found["node"] = {"node": nodes.last}
    return found


def send(role: str, pid: int, kind: signal.Signals) -> None:
    """Send a signal to a process, or to all of a node's."""
    with contextlib.suppress(ProcessLookupError):  # another may have taken its place
        (os.killpg if role == "node" else os.kill)(pid, kind)


def strike(
    job: Job, choose: random.Random, frozen_s: float, roles: Sequence[str], nodes: Nodes | None = None, spares: int = 0
) -> Strike:
    """Kill or freeze a process, or a node, and wait until all is as before."""
    found = processes(job, settled(job, spares), nodes)
    role = choose.choice([role for role in roles if role in found])
    name, pid = choose.choice(sorted(found[role].items()))
    kind = choose.choice((signal.SIGKILL, signal.SIGSTOP))
    print(f"  {kind.name} {role} {name}", flush=True)
    began_s = time.time()
    send(role, pid, kind)
    time.sleep(frozen_s)
    if kind is signal.SIGSTOP:
        send(role, pid, signal.SIGCONT)
    elif role == "node" and nodes is not None:
        nodes.forget()
    settled(job, spares)
    return Strike(role, kind.name, began_s, time.time() - began_s)


def begins_s(records: Sequence[Event]) -> float:
    """Return when the job's clock stood at zero, by the wall clock."""
    return next(record.data["at_s"] - record.time_s for record in records if record.kind == "state")


def with_stall(struck: Strike, steps_s: Sequence[float]) -> Strike:
    """Return a strike with the longest time without a step from shortly before it until all was as before."""
    near = [at_s for at_s in steps_s if struck.began_s - 1.0 <= at_s <= struck.began_s + struck.recovery_s + 1.0]
    return struck._replace(stall_s=max((b - a for a, b in itertools.pairwise(near)), default=0.0))


def told_once(records: Sequence[Event]) -> tuple[int, int]:
    """Return how many steps were never decided on, and how many twice."""
    steps = [record.step for record in records if record.kind == "decision"]
    return len({*range(max(steps, default=-1) + 1)} - {*steps}), len(steps) - len({*steps})


def worker_steps(records: Sequence[Event], from_s: float, to_s: float) -> int:
    """Return how many steps workers have made between two moments: each is a batch of samples."""
    zero_s, members, total = begins_s(records), 0, 0
    for record in records:
        if record.kind == "view":
            members = len(record.data["members"])
        elif record.kind == "decision" and from_s <= zero_s + record.time_s < to_s:
            total += members
    return total

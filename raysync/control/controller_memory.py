"""What a controller must know to go on where one before it left off: one value, written whole and read whole.

As `status.json` in the job's folder it is also what is left to read when all of the job's processes are gone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from raysync.address import Address, worker
from raysync.control.budgets import Retries
from raysync.control.states import JobState
from raysync.knobs import Knobs

_WITH_INFINITY = ("knobs", "asked", "early")
"""Fields that may hold an infinity, which JSON can only spell as a word."""


class StopWanted(msgspec.Struct, frozen=True):
    """The job is to end."""

    reason: str
    with_checkpoint: bool
    force_at_s: float
    """When it is ended by force, by the wall clock: a new controller has the same bound."""


class Memory(msgspec.Struct, kw_only=True):
    """Everything a controller remembers; whatever is not in here, a new one finds out by looking."""

    job: str
    state: JobState = JobState.PENDING
    reason: str = "it has just been submitted"
    started_s: float = 0.0
    """When the job's first controller began, by the wall clock."""
    step: int = 0
    metrics: dict[str, float | None] = {}
    """The last value of each."""
    runs: dict[str, Any] = {}
    """What really runs, or ran last."""
    checkpoint: str | None = None
    """The last one that can be gone on from."""
    resume: str | None = None
    """What the next launch continues from."""
    knobs: Knobs
    """In force."""
    asked: Knobs
    """As they will be with the next decision; their version never goes back, whatever dies."""
    early: Knobs
    """What was turned before there was a controller, as far as it is part of `asked`."""
    paused_by: str = ""
    """Who asked for the pause, or ended it."""
    view: int = 0
    members: frozenset[Address] = frozenset()
    leaving: frozenset[Address] = frozenset()
    """Workers that have been asked to leave."""
    stop: StopWanted | None = None
    retries: Retries = Retries()
    """What has failed so far, as far as it counts."""
    incarnation: int = 0
    """How many coordinators it has had: which one an event comes from."""
    successions: int = 0
    """How often a coordinator took over from one that died, and asked."""
    is_succeeded: bool = False
    """The present one has."""
    replicas: int = 0
    """How many backups each shard has."""
    generations: int = 1
    """How often shards were started to stand by: part of their numbers."""
    servers: tuple[Address, ...] = ()
    """The shard of each slot; empty until the coordinator tells."""
    backups: tuple[Address | None, ...] = ()
    """Who follows each."""
    absent: tuple[Address, ...] = ()
    """Workers of the checkpoint that the last launch has not started again."""
    next_worker: int = 0
    reserved: int = 0
    """Event numbers below this one may have been given out."""
    node: str = ""
    """The node of the controller that wrote this, as Ray names it: another name after each start of a machine."""


def wanted_workers(memory: Memory, num_first: Callable[[], int]) -> int:
    """Return how many workers there should be: what the knobs say, once those are in force that continue a checkpoint;
    before, as many as the launch has (`num_first`).
    """
    if memory.view == 0 and memory.resume is not None:
        return num_first()
    return int((memory.knobs if memory.view > 0 else memory.asked).values["workers"] or 0)


def written(memory: Memory) -> bytes:
    """Return a memory as JSON."""
    plain = msgspec.to_builtins(memory, enc_hook=str)
    for name in _WITH_INFINITY:
        plain[name]["values"] = {knob: _spelled(value) for knob, value in plain[name]["values"].items()}
    plain |= {"members": _texts(memory.members), "leaving": _texts(memory.leaving)}
    plain["absent"] = [str(worker) for worker in memory.absent]
    plain["servers"] = [str(server) for server in memory.servers]
    plain["backups"] = [None if backup is None else str(backup) for backup in memory.backups]
    for cause, count in memory.retries.incidents.items():
        plain["retries"]["incidents"][cause]["present"] = _texts(count.present)
    return msgspec.json.encode(plain, enc_hook=str)


def read(data: bytes) -> Memory:
    """Return what `written` was given; also what an older raysync wrote, as far as it goes."""
    plain: dict[str, Any] = msgspec.json.decode(data)
    plain.setdefault("asked", plain["knobs"])
    plain.setdefault("early", plain["knobs"])
    for name in _WITH_INFINITY:
        values = plain[name]["values"].items()
        plain[name] = {**plain[name], "values": {knob: _meant(value) for knob, value in values}}
    plain |= {name: _addresses(plain[name]) for name in ("members", "leaving") if name in plain}
    for name in ("absent", "servers", "backups"):
        plain[name] = [None if text is None else Address.parse(text) for text in plain.get(name, [])]
    for count in plain.get("retries", {}).get("incidents", {}).values():
        count["present"] = _addresses(count["present"])
    if isinstance(plain.get("stop"), str):
        plain["stop"] = {"reason": plain["stop"], "with_checkpoint": True, "force_at_s": 0.0}
    return msgspec.convert(plain, Memory)


def _spelled(value: Any) -> Any:
    return "Infinity" if value == math.inf else value


def _meant(value: Any) -> Any:
    return math.inf if value == "Infinity" else value


def _texts(addresses: Iterable[Address]) -> list[str]:
    return [str(address) for address in sorted(addresses)]


def _addresses(found: list[str | int]) -> list[Address]:
    """Return addresses from their texts; an older raysync wrote the numbers of workers."""
    return [Address.parse(text) if isinstance(text, str) else worker(text) for text in found]

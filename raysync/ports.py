"""What a control plane and the runtime that carries its jobs tell each other: plain values, no code.

What can be asked is `raysync.runtime`'s to say, and `raysync.questions` carries it from process to process.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from raysync.control.reconcile import Life
from raysync.control.states import JobState
from raysync.events import Event
from raysync.knobs import Knobs


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """A job to be started, or started again where it stopped."""

    job: str
    spec: str
    """The job as JSON."""
    storage: str
    """Where the job's folder is made."""
    working_dir: str | None = None
    """A folder with the user's code, on the runtime's own file system."""
    pip: tuple[str, ...] = ()
    resume_from: str | None = None
    """The checkpoint to start from."""
    again: bool = False
    """It ran before: clear away what is left of it and go on from its folder."""
    knobs: Knobs | None = None
    """As they were turned since the job was submitted; a job that runs already takes over what is newer."""


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be seen of a job now."""

    has_controller: bool
    """Its controller answers."""
    end: str | None = None
    """The terminal state its folder tells of."""
    end_reason: str = ""
    has_checkpoint: bool = False


class Records(msgspec.Struct, frozen=True):
    """Events of a job, in order, and where to read on."""

    records: list[Event]
    offset: int = 0
    """Bytes of the journal read so far; only when it is read from the job's folder."""


class LogPage(msgspec.Struct, frozen=True):
    """A piece of a job's log: whole lines."""

    lines: list[str]
    offset: int
    """Where the next page begins."""


class CheckpointSeen(msgspec.Struct, frozen=True):
    """A complete checkpoint in a job's folder."""

    name: str
    path: str
    step: int
    round: int
    workers: int
    elapsed_s: float
    size_bytes: int


class FileSeen(msgspec.Struct, frozen=True):
    """A file in a job's folder that may be taken along."""

    path: str
    """In the job's folder."""
    kind: Literal["model", "checkpoint", "trace"]
    size_bytes: int
    step: int | None = None
    """Of a checkpoint's files."""


class ActorStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One actor of a job: where it is, and how."""

    life: Life
    node: str | None = None
    node_id: str | None = None
    pid: int | None = None
    facts: dict[str, Any] = {}
    """What it says of itself: device, threads, memory, bytes sent."""


class Runs(msgspec.Struct, frozen=True, kw_only=True):
    """What a job really runs with, beside what it asked for."""

    link: str | None
    """None until its actors have met."""
    link_reason: str
    push: str
    pull: str
    error_feedback: bool
    decides_ahead: bool
    shards_in: str
    backups: int = 0
    """How many follow each shard, and know all that it has said."""
    devices: list[str]
    actors: dict[str, dict[str, Any]]
    """What each actor said of itself; of one that is gone, what it said last."""


class JobStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a job's controller knows of it."""

    job: str
    name: str
    state: JobState
    reason: str
    step: int
    """Up to which it has told."""
    steps: int
    """Its budget."""
    knobs: Knobs
    """In force."""
    asked: Knobs
    """As they will be with the next decision."""
    metrics: dict[str, Any]
    """The last value of each: a number, or whatever else a user's own evaluation returns."""
    actors: dict[str, ActorStatus]
    runs: Runs
    path: str
    """The job's folder."""
    checkpoint: str | None
    """The last one that can be gone on from."""
    checkpoints: list[str]
    """The names of all complete ones, oldest first."""
    incarnation: int
    """How often its actors have been started."""


def check_ray_address(address: str) -> str:
    """Return the address of a cluster, or raise `ValueError` if no job can be launched through it."""
    if address.startswith("ray://"):
        raise ValueError(
            "Ray's client protocol (ray://) does not carry jobs that bring their own code; make this machine a node, "
            "ray start --address=HEAD:6379 --num-cpus=0, and give HEAD:6379 as the address"
        )
    return address

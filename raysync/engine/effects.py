"""What a core asks of its host: every call of a core returns a list of these, and does nothing else to the world."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from raysync.address import Address
from raysync.engine.messages import Message
from raysync.events import Event
from raysync.spec import JobSpec


class Send(NamedTuple):
    """A message and where it goes."""

    to: Address
    message: Message


class Cut(NamedTuple):
    """What a checkpoint is of: where the job was when all cores copied themselves."""

    step: int
    round: int
    time_s: float
    """The coordinator's clock."""
    workers: tuple[Address, ...]
    servers: tuple[Address, ...]
    spec: JobSpec
    """With the knobs then in force."""


class Stream(NamedTuple):
    """Messages of which each is made when the one before it has left; the core does nothing else meanwhile."""

    sends: Iterator[Send]


class KeepPart(NamedTuple):
    """Write this state as the core's part of a checkpoint, while the core goes on; the host answers with `PartKept`
    once it is written, or could not be.
    """

    checkpoint: int
    state: dict[str, Any]
    cut: Cut | None = None
    """With the last part, the coordinator's, the checkpoint begins to exist: what it is of, and its files with their
    checksums.
    """
    files: Mapping[str, str] = {}


class KeepModel(NamedTuple):
    """Keep the final model; the host answers with `ModelKept`, or ends the core."""


class Note(NamedTuple):
    """Put an event into the job's history."""

    event: Event


Effect = Send | Stream | KeepPart | KeepModel | Note
Effects = list[Effect]

"""What a core asks of its host: every call of a core returns a list of these, and does nothing else to the world."""

from __future__ import annotations

from typing import Any, NamedTuple

from raysync.address import Address
from raysync.engine.messages import Message
from raysync.events import Event


class Send(NamedTuple):
    """A message and where it goes."""

    to: Address
    message: Message


class KeepPart(NamedTuple):
    """Keep this state as the core's part of a checkpoint; the host answers with `PartKept`."""

    checkpoint: int
    state: dict[str, Any]


class KeepModel(NamedTuple):
    """Keep the final model; the host answers with `ModelKept`, or ends the core."""


class Note(NamedTuple):
    """Put an event into the job's history."""

    event: Event


Effect = Send | KeepPart | KeepModel | Note
Effects = list[Effect]

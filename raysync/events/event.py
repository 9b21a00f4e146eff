"""The envelope of every event, the same from the coordinator to the service."""

from __future__ import annotations

from typing import Any

import msgspec

from raysync.events.body import AnyEvent, body_of


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened."""

    sequence: int
    """Its number: at the coordinator, and from the journal on among all events of the job. Only this goes up over all
    of a job, and after a journal lost its end even it is used again: whoever has taken events of another life compares
    them first."""
    kind: str
    time_s: float = 0.0
    """Seconds the job has run: on the coordinator's clock, which the controller shifts to its own."""
    step: int = 0
    worker: int | None = None
    knob_version: int = 0
    source: int | None = None
    """Its number at the coordinator, if it comes from there."""
    incarnation: int = 0
    """How often the job's actors had been started; what they count, they count anew from a checkpoint each time."""
    data: dict[str, Any]

    @property
    def body(self) -> AnyEvent | None:
        """What it tells; None if that is unknown here."""
        return body_of(self.kind, self.data)

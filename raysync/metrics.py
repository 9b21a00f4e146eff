"""Metric names and the event log: everything a job tells about itself, numbered without gaps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class Event(msgspec.Struct, frozen=True):
    """One thing that happened; `kind` is metrics, decision, view, knobs, snapshot or end."""

    job: str
    sequence: int
    kind: str
    step: int
    worker: int | None
    knob_version: int
    data: dict[str, Any]
    time_s: float = 0.0
    """Seconds since the job's first start, on the coordinator's clock."""


class EventLog:
    """Numbers events and holds them until somebody takes them."""

    def __init__(self, job: str) -> None:
        self._job, self._next, self._events = job, 0, list[Event]()
        self.now_s = 0.0
        """The time the next events carry; set by whoever has a clock."""

    def add(self, kind: str, step: int, knob_version: int, data: Mapping[str, Any], worker: int | None = None) -> None:
        """Append an event."""
        self._events.append(Event(self._job, self._next, kind, step, worker, knob_version, dict(data), self.now_s))
        self._next += 1

    def take(self) -> list[Event]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events

    def state_dict(self) -> dict[str, Any]:
        """Return the number of the next event and what has not been taken."""
        return {"next": self._next, "events": msgspec.to_builtins(self._events)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the numbering."""
        self._next = state["next"]
        self._events = msgspec.convert(state["events"], list[Event])

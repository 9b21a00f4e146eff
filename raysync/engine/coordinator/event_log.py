"""The coordinator's events, numbered without gaps and held until they are taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from raysync.events import AnyEvent, Event


class EventLog:
    """Numbers events."""

    def __init__(self) -> None:
        self._next, self._events = 0, list[Event]()
        self.now_s = 0.0
        """The time the next events carry; set by the coordinator, which is told it."""

    def add(self, body: AnyEvent, step: int, knob_version: int, worker: int | None = None) -> None:
        """Append an event."""
        event = Event(
            sequence=self._next,
            kind=body.kind,
            time_s=self.now_s,
            step=step,
            worker=worker,
            knob_version=knob_version,
            data=body.data,
        )
        self._events.append(event)
        self._next += 1

    def retract(self) -> None:
        """Forget the last event, which has not been taken yet."""
        self._events.pop()
        self._next -= 1

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

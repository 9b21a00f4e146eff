"""The knobs of a running job: what is in force, what waits for the next decision, and the job they make together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from raysync.engine.plain import Fields, dump, load
from raysync.knobs import Knobs, apply_knobs, initial_knobs, turn
from raysync.spec import JobSpec


class Asked(msgspec.Struct, frozen=True):
    """A change that waits for the next decision, and what that one was to be about when it came."""

    changes: dict[str, Any]
    step: int


class Turned(msgspec.Struct, frozen=True):
    """A change that is in force: the values before and after, and the version it made."""

    before: dict[str, Any]
    after: dict[str, Any]
    version: int
    asked_step: int


class KnobBoard:
    """Checks changes when they come, applies them when a step is decided on."""

    _FIELDS: ClassVar[Fields] = {"knobs": Knobs, "_waiting": list[Asked]}

    def __init__(self, submitted: JobSpec) -> None:
        self._submitted = submitted
        self.knobs = initial_knobs(submitted)
        self.spec = submitted
        """The job with the knobs now in force."""
        self._waiting: list[Asked] = []

    def preview(self, changes: Mapping[str, Any], expected_version: int | None) -> Knobs:
        """Return the knobs that changes would make; raise if they cannot be."""
        return turn(self._submitted, self.ahead(), changes, expected_version)

    def turn(self, changes: Mapping[str, Any], expected_version: int | None, step: int = 0) -> Knobs:
        """Accept changes for the next decision and return the knobs they will make; raise if they cannot be."""
        turned = self.preview(changes, expected_version)
        self._waiting.append(Asked(dict(changes), step))
        return turned

    def apply(self) -> list[Turned]:
        """Put what waits in force; return each change."""
        changed = []
        for asked in self._waiting:
            before = self.knobs.values
            self.knobs = turn(self._submitted, self.knobs, asked.changes)
            was, now = ({name: values[name] for name in asked.changes} for values in (before, self.knobs.values))
            changed.append(Turned(was, now, self.knobs.version, asked.step))
        if changed:
            self.spec = apply_knobs(self._submitted, self.knobs)
        self._waiting = []
        return changed

    @property
    def paused(self) -> bool:
        """Whether decisions are held back: the pause is in force and nothing that waits ends it."""
        return bool(self.knobs.values["pause"]) and bool(self.ahead().values["pause"])

    def ahead(self) -> Knobs:
        """Return the knobs as they will be once what waits is in force."""
        knobs = self.knobs
        for asked in self._waiting:
            knobs = turn(self._submitted, knobs, asked.changes)
        return knobs

    def state_dict(self) -> dict[str, Any]:
        """Return the knobs as plain data."""
        return dump(self, self._FIELDS)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        load(self, self._FIELDS, state)
        self.spec = apply_knobs(self._submitted, self.knobs)

"""The knobs of a running job: what is in force, what waits for the next decision, and the job they make together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from raysync.engine.plain import Fields, dump, load
from raysync.events import KnobChange
from raysync.knobs import Knobs, apply_knobs, initial_knobs, turn
from raysync.spec import JobSpec


class Asked(msgspec.Struct, frozen=True):
    """A change that waits for the next decision, and what that one was to be about when it came."""

    changes: dict[str, Any]
    step: int
    version: int | None = None
    """The version it makes; the next one by default."""
    why: str | None = None
    """Why it comes now, if it was not asked for just now."""
    by: str = ""
    """Who asked for it."""


class Turned(msgspec.Struct, frozen=True):
    """A change that is in force: the values before and after, and the version it made."""

    before: dict[str, Any]
    after: dict[str, Any]
    version: int
    asked_step: int
    why: str | None = None
    by: str = ""

    @property
    def told(self) -> KnobChange:
        """The change as an event tells it."""
        return KnobChange(self.before, self.after, self.asked_step, self.why, self.by)


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

    def turn(self, changes: Mapping[str, Any], expected_version: int | None, step: int = 0, by: str = "") -> Knobs:
        """Accept changes for the next decision and return the knobs they will make; raise if they cannot be."""
        turned = self.preview(changes, expected_version)
        self._waiting.append(Asked(dict(changes), step, by=by))
        return turned

    def adopt(self, knobs: Knobs, step: int = 0, why: str | None = None) -> bool:
        """Take over knobs that were turned where this board could not be asked, if they are newer than what it has or
        waits for; return whether they are.
        """
        if knobs.version <= self.ahead().version:
            return False
        old = self.knobs.values
        changes = {name: value for name, value in knobs.values.items() if name in old and old[name] != value}
        self._waiting = [Asked(changes, step, knobs.version, why)]
        return True

    def resume(self, knobs: Knobs) -> None:
        """Go on with knobs that are in force."""
        self.knobs, self.spec = knobs, apply_knobs(self._submitted, knobs)

    def apply(self) -> list[Turned]:
        """Put what waits in force; return each change."""
        changed = []
        for asked in self._waiting:
            before = self.knobs.values
            self.knobs = self._after(self.knobs, asked)
            was, now = ({name: values[name] for name in asked.changes} for values in (before, self.knobs.values))
            changed.append(Turned(was, now, self.knobs.version, asked.step, asked.why, asked.by))
        if changed:
            self.spec = apply_knobs(self._submitted, self.knobs)
        self._waiting = []
        return changed

    def begin_anew(self, step: int = 0) -> None:
        """Another job goes on from here: it does not wait where the first one paused, and has the workers and the limit
        it asks for; what waited for the first one's next decision about these is void.
        """
        scale, transport = self._submitted.scale, self._submitted.transport
        own = {"pause": False, "workers": scale.workers, "limit_mbit": transport.limit_mbit}
        rest = [
            msgspec.structs.replace(asked, changes={n: v for n, v in asked.changes.items() if n not in own})
            for asked in self._waiting
        ]
        promised = self.knobs.version + len(self._waiting)
        self._waiting = [asked for asked in rest if asked.changes]
        changes = {name: value for name, value in own.items() if self.knobs.values.get(name) != value}
        if changes:
            self._waiting.append(Asked(changes, step, max(promised, self.ahead().version) + 1))

    @property
    def has_waiting(self) -> bool:
        """Whether a change waits for the next decision."""
        return bool(self._waiting)

    @property
    def paused(self) -> bool:
        """Whether decisions are held back: the pause is in force and nothing that waits ends it."""
        return bool(self.knobs.values["pause"]) and bool(self.ahead().values["pause"])

    def ahead(self) -> Knobs:
        """Return the knobs as they will be once what waits is in force."""
        knobs = self.knobs
        for asked in self._waiting:
            knobs = self._after(knobs, asked)
        return knobs

    def _after(self, knobs: Knobs, asked: Asked) -> Knobs:
        turned = turn(self._submitted, knobs, asked.changes) if asked.changes else knobs
        return turned if asked.version is None else Knobs(asked.version, turned.values)

    def state_dict(self) -> dict[str, Any]:
        """Return the knobs as plain data."""
        return dump(self, self._FIELDS)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        load(self, self._FIELDS, state)
        self.spec = apply_knobs(self._submitted, self.knobs)

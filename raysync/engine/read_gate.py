"""Everybody's clocks under an asynchronous strategy, and who waits to read."""

from __future__ import annotations

from typing import Any, ClassVar

from raysync.engine.plain import Fields, dump, load


class ReadGate:
    """Which clock each member has pushed; members that have pushed wait here until they may read."""

    _FIELDS: ClassVar[Fields] = {"clocks": dict[int, int], "waiting": dict[int, int], "_low": int}

    def __init__(self) -> None:
        self.clocks: dict[int, int] = {}
        """The last clock each member has pushed."""
        self.waiting: dict[int, int] = {}
        """Members that wait to read, and the clock they have just pushed."""
        self._low = -1

    @property
    def low_clock(self) -> int:
        """The clock every member has pushed; with no members left, the last one that was."""
        return min(self.clocks.values(), default=self._low)

    def admit(self, worker: int, first_clock: int) -> None:
        """Let a member start at a clock."""
        self.clocks[worker] = first_clock - 1

    def pushed(self, worker: int, clock: int) -> None:
        """A member has pushed a clock and wants to read."""
        self.clocks[worker] = self.waiting[worker] = clock
        self._low = self.low_clock

    def release(self, worker: int) -> None:
        """A member reads on."""
        self.waiting.pop(worker, None)

    def remove(self, worker: int) -> None:
        """A member is gone."""
        self.clocks.pop(worker, None)
        self.waiting.pop(worker, None)

    def state_dict(self) -> dict[str, Any]:
        """Return the clocks as plain data."""
        return dump(self, self._FIELDS)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        load(self, self._FIELDS, state)

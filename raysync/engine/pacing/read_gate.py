"""Every member's clock under an asynchronous strategy, and who waits to read. The cost of a push does not grow with
the number of members.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

from raysync.address import Address
from raysync.engine.plain import Fields, dump, load


class ReadGate:
    """Which clock each member has pushed; members that have pushed wait here until they may read."""

    _FIELDS: ClassVar[Fields] = {"clocks": dict[Address, int], "waiting": dict[Address, int], "_low": int}

    def __init__(self) -> None:
        self.clocks: dict[Address, int] = {}
        """The last clock each member has pushed."""
        self.waiting: dict[Address, int] = {}
        """Members that wait to read, and the clock they have just pushed."""
        self.high_clock = -1
        """The last clock any member has pushed."""
        self._low = -1
        self._counts: Counter[int] = Counter()
        """How many members stand at each clock; none below `_floor`."""
        self._floor = 0
        self._fresh: set[Address] = set()
        self._looked_at: object = None

    @property
    def low_clock(self) -> int:
        """The clock every member has pushed; with no members left, the last one that was."""
        if not self.clocks:
            return self._low
        while not self._counts[self._floor]:
            del self._counts[self._floor]
            self._floor += 1
        return self._floor

    def begin_at(self, clock: int) -> None:
        """Every member that is gone has pushed a clock: with none left, newcomers go on after it."""
        self._low = clock

    def admit(self, worker: Address, first_clock: int) -> None:
        """Let a member start at a clock."""
        self._move(worker, first_clock - 1)

    def pushed(self, worker: Address, clock: int) -> None:
        """A member has pushed a clock and wants to read."""
        self._move(worker, clock)
        self.waiting[worker] = clock
        self._fresh.add(worker)
        self.high_clock = max(self.high_clock, clock)
        self._low = self.low_clock

    def release(self, worker: Address) -> None:
        """A member reads on."""
        self.waiting.pop(worker, None)
        self._fresh.discard(worker)

    def remove(self, worker: Address) -> None:
        """A member is gone."""
        self.release(worker)
        if worker in self.clocks:
            self._counts[self.clocks.pop(worker)] -= 1

    def worth_a_look(self, conditions: object) -> list[tuple[Address, int]]:
        """Return members that wait, with their clocks, in order: those that came since the last call, or all of them
        if the conditions under which they may read have changed since.
        """
        fresh, self._fresh = self._fresh, set()
        if conditions != self._looked_at:
            self._looked_at = conditions
            return sorted(self.waiting.items())
        return sorted((worker, self.waiting[worker]) for worker in fresh)

    def _move(self, worker: Address, clock: int) -> None:
        if worker in self.clocks:
            self._counts[self.clocks[worker]] -= 1
        self._floor = min(self._floor, clock) if self.clocks else clock
        self.clocks[worker] = clock
        self._counts[clock] += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the clocks as plain data."""
        return dump(self, self._FIELDS)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        load(self, self._FIELDS, state)
        self._counts = Counter(self.clocks.values())
        self._floor, self.high_clock = min(self.clocks.values(), default=0), max(self.clocks.values(), default=-1)
        self._fresh, self._looked_at = set(self.waiting), None

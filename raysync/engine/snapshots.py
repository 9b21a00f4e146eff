"""Checkpoints as the coordinator sees them: whether one is due, and whose part is still missing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from raysync.engine import messages as m
from raysync.engine.plain import Fields, dump, load


class Snapshots:
    """One checkpoint at a time, taken while every worker waits for a decision and no round is open."""

    _FIELDS: ClassVar[Fields] = {"number": int, "due": bool, "_missing": list[str]}

    def __init__(self) -> None:
        self.number = 0
        self.due = False
        """Somebody wants a checkpoint: no decision is made until it is complete."""
        self._missing: list[str] = []

    def begin(self, addresses: Iterable[str]) -> list[m.Send]:
        """Ask everybody for their part, unless they have been asked."""
        if self._missing:
            return []
        self.number, self._missing = self.number + 1, list(addresses)
        return self.unanswered()

    def unanswered(self) -> list[m.Send]:
        """Return the requests nobody has answered."""
        return [m.Send(to, m.SnapshotRequest(snapshot=self.number)) for to in self._missing]

    def arrived(self, part: m.SnapshotPart) -> bool:
        """Take note of a part; return whether it completes the checkpoint."""
        if part.snapshot != self.number or part.sender not in self._missing:
            return False
        self._missing.remove(part.sender)
        self.due = bool(self._missing)
        return not self._missing

    def abandon(self) -> None:
        """The membership has changed: begin anew."""
        self._missing = []

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain data."""
        return dump(self, self._FIELDS)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        load(self, self._FIELDS, state)

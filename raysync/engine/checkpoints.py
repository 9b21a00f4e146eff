"""Checkpoints as the coordinator sees them (whether one is due, and whose part is still missing), and as those see them
who contribute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from raysync.address import COORDINATOR, Address
from raysync.engine import messages as m
from raysync.engine.effects import Effects, KeepPart, Send
from raysync.engine.plain import Fields, dump, load


class Checkpoints:
    """One checkpoint at a time, taken while every worker waits for a decision and no round is open."""

    _FIELDS: ClassVar[Fields] = {"number": int, "due": bool, "_missing": list[Address]}

    def __init__(self) -> None:
        self.number = 0
        self.due = False
        """A checkpoint is wanted: no decision is made until it is complete."""
        self._missing: list[Address] = []

    def begin(self, addresses: Iterable[Address]) -> Effects:
        """Ask every core for its part, unless they have been asked."""
        if self._missing:
            return []
        self.number, self._missing = self.number + 1, list(addresses)
        return self.unanswered()

    def unanswered(self) -> Effects:
        """Return the requests without an answer."""
        return [Send(to, m.CheckpointRequest(checkpoint=self.number)) for to in self._missing]

    def arrived(self, part: m.CheckpointPart) -> bool:
        """Take note of a part; return whether it completes the checkpoint."""
        if not self._is_awaited(part):
            return False
        self._missing.remove(part.sender)
        self.due = bool(self._missing)
        return not self._missing

    def gave_up(self, part: m.CheckpointPart) -> bool:
        """Take note of a part that could not be written, and with it the checkpoint; return whether that is news."""
        if not self._is_awaited(part):
            return False
        self._missing, self.due = [], False
        return True

    def abandon(self) -> None:
        """The membership has changed: begin anew."""
        self._missing = []

    def pass_over(self, number: int) -> None:
        """Use no number up to this one: a checkpoint that exists is never written to."""
        self.number = max(self.number, number)

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain data."""
        return dump(self, self._FIELDS)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        load(self, self._FIELDS, state)

    def _is_awaited(self, part: m.CheckpointPart) -> bool:
        return part.checkpoint == self.number and part.sender in self._missing


class Contribution:
    """A core's parts of checkpoints: every number is given once, and answered as often as it is asked for."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self.given = 0
        """The last number a part was given for."""
        self.answer: m.CheckpointPart | None = None
        """The last one given."""

    def asked(self, checkpoint: int, state: Callable[[], dict[str, Any]] | None) -> Effects:
        """Return the answer to a request, or the part itself first; put off in silence while there is no `state` to be
        had.
        """
        if self.answer is not None and checkpoint <= self.answer.checkpoint:
            return [Send(COORDINATOR, self.answer)] if checkpoint == self.answer.checkpoint else []
        if state is None or checkpoint <= self.given:
            return []
        self.given = checkpoint
        return [KeepPart(checkpoint, state())]

    def kept(self, outcome: m.PartKept) -> Effects:
        """Tell the coordinator what became of a part."""
        self.answer = m.CheckpointPart(checkpoint=outcome.checkpoint, sender=self._address, problem=outcome.problem)
        return [Send(COORDINATOR, self.answer)]

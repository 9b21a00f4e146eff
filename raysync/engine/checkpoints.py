"""Checkpoints as the coordinator sees them (whether one is due, who has not cut, whose part is not written), and as
those see them who contribute.

A checkpoint is a cut: every core copies what it is while all workers wait, says so at once, and goes on. What was
copied is written meanwhile. Only once all of it is written does the checkpoint exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from raysync.address import COORDINATOR, Address
from raysync.engine import messages as m
from raysync.engine.effects import Cut, Effects, KeepPart, Send
from raysync.engine.plain import Fields, dump, load


class Checkpoints:
    """One checkpoint at a time: the cut while every worker waits for a decision and no round is open, the rest while
    they train.
    """

    _FIELDS: ClassVar[Fields] = {"number": int}

    def __init__(self) -> None:
        self.number = 0
        self.due = False
        """A checkpoint is wanted: no decision is made until all cores have cut."""
        self.has_begun = False
        """One has been begun here, or is what this coordinator went on from."""
        self._uncut: list[Address] = []
        self._unwritten: list[Address] = []
        """Whose part of the cut is not known to be written."""
        self._cut: tuple[Cut, dict[str, Any]] | None = None
        """What the coordinator copied of itself, until all has been written."""
        self._files: dict[str, str] = {}

    @property
    def is_writing(self) -> bool:
        """Whether all have cut, and not all is written."""
        return self._cut is not None

    @property
    def cut(self) -> Cut | None:
        """What the checkpoint is of that is being written."""
        return None if self._cut is None else self._cut[0]

    def begin(self, addresses: Iterable[Address]) -> Effects:
        """Ask every core to cut, unless they have been asked, or the last checkpoint is still being written."""
        if self._uncut or self.is_writing:
            return []
        self.number, self.has_begun = self.number + 1, True
        self._uncut, self._unwritten, self._files = list(addresses), [], {}
        return self.unanswered()

    def unanswered(self) -> Effects:
        """Return the requests without an answer."""
        cut = [Send(to, m.CheckpointRequest(checkpoint=self.number)) for to in self._uncut]
        if not self.is_writing:
            return [*cut]
        return [Send(to, m.CheckpointRequest(checkpoint=self.number, has_cut=True)) for to in self._unwritten]

    def asked_again(self, who: Address) -> Effects:
        """Return the question what became of a part, if it is not known to be written."""
        asked = m.CheckpointRequest(checkpoint=self.number, has_cut=True)
        return [Send(who, asked)] if self.is_writing and who in self._unwritten else []

    def cut_by(self, told: m.CheckpointCut) -> bool:
        """Take note that a core has cut; return whether all have by that."""
        if told.checkpoint != self.number or told.sender not in self._uncut:
            return False
        self._uncut.remove(told.sender)
        self._unwritten.append(told.sender)
        return not self._uncut

    def all_cut(self, cut: Cut, state: dict[str, Any]) -> None:
        """The coordinator has copied itself, too: decisions may be made again."""
        self._cut, self.due = (cut, state), False

    def written(self, part: m.CheckpointPart) -> Effects:
        """Take note of a part; with the last one return the coordinator's own, which completes the checkpoint."""
        if not self._is_awaited(part):
            return []
        self._unwritten.remove(part.sender)
        self._files |= part.files
        if self._unwritten or self._uncut or self._cut is None:
            return []
        cut, state = self._cut
        return [KeepPart(self.number, state, cut, dict(self._files))]

    def own_written(self, outcome: m.PartKept) -> Cut | None:
        """The coordinator's part is written, or could not be: return what the checkpoint is of; None if it was given up
        meanwhile.
        """
        if outcome.checkpoint != self.number or self._cut is None or self._unwritten:
            return None
        cut, _ = self._cut
        self._cut = None
        return cut

    def failed(self, part: m.CheckpointPart) -> bool:
        """A part could not be written: give the checkpoint up; return whether that is news."""
        if not self._is_awaited(part):
            return False
        self.due = self.due and self.is_writing  # while it was written another one may have been asked for
        self._give_up()
        return True

    def lost(self, who: Iterable[Address]) -> bool:
        """Cores have died: give the checkpoint up that lacks a part of theirs; return whether there is one. A cut that
        not all have made begins anew.
        """
        if not self.is_writing:
            self.abandon()
        elif {*who} & {*self._unwritten}:
            self._give_up()
            return True
        return False

    def abandon(self) -> None:
        """Who is in, or who serves, has changed: a cut that not all have made begins anew."""
        if not self.is_writing:
            self._uncut, self._unwritten = [], []

    def pass_over(self, number: int) -> None:
        """Use no number up to this one: a checkpoint that exists is never written to."""
        self.number = max(self.number, number)

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain data: whoever goes on from it has this checkpoint."""
        return dump(self, self._FIELDS)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        load(self, self._FIELDS, state)
        self.has_begun = True

    def _give_up(self) -> None:
        self._cut, self._uncut, self._unwritten = None, [], []

    def _is_awaited(self, part: m.CheckpointPart) -> bool:
        return part.checkpoint == self.number and part.sender in self._unwritten


class Contribution:
    """A core's parts of checkpoints: every number is given once, and answered as often as it is asked for."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self.given = 0
        """The last number a part was given for."""
        self.answer: m.CheckpointPart | None = None
        """What became of the last one that is written, or could not be."""

    @property
    def is_being_written(self) -> bool:
        """Whether it is not known yet what becomes of the last part."""
        return self.given > (0 if self.answer is None else self.answer.checkpoint)

    def asked(self, request: m.CheckpointRequest, state: Callable[[], dict[str, Any]] | None) -> Effects:
        """Return what becomes of a part, or cut; put off in silence while there is no `state` to be had."""
        number = request.checkpoint
        has_cut = Send(COORDINATOR, m.CheckpointCut(checkpoint=number, sender=self._address))
        if self.answer is not None and number <= self.answer.checkpoint:
            told = [] if request.has_cut else [has_cut]
            return [*told, Send(COORDINATOR, self.answer)] if number == self.answer.checkpoint else []
        if number <= self.given:
            return [has_cut] if number == self.given and not request.has_cut else []
        if request.has_cut:
            return self.kept(m.PartKept(checkpoint=number, problem="its process has begun anew since the cut"))
        if state is None:
            return []
        self.given = number
        return [has_cut, KeepPart(number, state())]

    def kept(self, outcome: m.PartKept) -> Effects:
        """Tell the coordinator what became of a part, unless it has asked for a newer one since."""
        if outcome.checkpoint < self.given:
            return []
        self.given = outcome.checkpoint
        self.answer = m.CheckpointPart(
            checkpoint=outcome.checkpoint, sender=self._address, problem=outcome.problem, files=outcome.files
        )
        return [Send(COORDINATOR, self.answer)]

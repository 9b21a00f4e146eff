"""The port between the coordinator and who waits for whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from raysync.address import Address
from raysync.engine import messages as m
from raysync.engine.effects import Effects, Send

if TYPE_CHECKING:
    from raysync.control.view import View
    from raysync.engine.coordinator.books import Books
    from raysync.engine.coordinator.ending import Ending
    from raysync.engine.coordinator.knob_board import KnobBoard
    from raysync.engine.coordinator.membership import Membership
    from raysync.engine.coordinator.recall import Past
    from raysync.spec import JobSpec
    from raysync.sync.base import Choice


class Desk(Protocol):
    """The coordinator as a pacing sees it."""

    membership: Membership
    board: KnobBoard
    books: Books
    ending: Ending

    @property
    def spec(self) -> JobSpec:
        """The job with the knobs now in force."""

    @property
    def view(self) -> View:
        """The present view."""

    @property
    def is_held(self) -> bool:
        """Whether no decision may be made now: the job is paused."""

    def is_last(self, step: int) -> bool:
        """Return whether the job ends with a step."""

    def turn_knobs(self, step: int) -> Effects:
        """Put what was turned in force from a step on; return what to tell whom."""

    def change_view(
        self, start_step: int, *, admitted: tuple[Address, ...] = (), leaving: tuple[Address, ...] = ()
    ) -> Effects:
        """Make the next view; return what to tell whom."""

    def steps_per_lap(self, num_workers: int) -> int:
        """Return in how many steps so many workers read the data once."""

    @property
    def wants_checkpoint(self) -> bool:
        """Whether all are to wait, so that a checkpoint can be taken."""

    @property
    def waits_for_checkpoint(self) -> bool:
        """Whether no decision may be made now for the sake of a checkpoint."""

    def begin_checkpoint(self) -> Effects:
        """Have every core copy itself for a checkpoint: all workers wait."""

    def closed(self, round: int) -> None:
        """A round has closed, or is about to: a checkpoint may be due after it."""

    def record(self, decision: m.Decision, choice: Choice) -> None:
        """Have a decision written down."""


class Entry(NamedTuple):
    """Where a newcomer begins: the first step it computes, and the round whose state it fetches."""

    step: int
    round: int
    participants: tuple[Address, ...] | None = None
    free_until: int = 0


class Pacing:
    """Takes in reports and makes decisions; knows nothing of strategies but what `Needs` says."""

    applies_on_arrival: ClassVar[bool] = False
    """Whether a shard applies each push when it comes, so that workers push before they report, and keep clocks of
    their own; otherwise pushes wait for a round.
    """

    repeats_often: ClassVar[bool] = False
    """Whether what has no answer must be repeated though messages come all the time: nobody stops for lack of it."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    @property
    def steps_made(self) -> int:
        """How many steps have been decided on."""
        raise NotImplementedError

    @property
    def next_step(self) -> int:
        """The step that the next decision will be about."""
        raise NotImplementedError

    @property
    def due_s(self) -> float | None:
        """When the next decision may be made though not all have reported; None if it may not."""
        return None

    @property
    def step_after_a_death(self) -> int:
        """The first step whose data is dealt out anew when a worker dies now."""
        raise NotImplementedError

    @property
    def next_round(self) -> int:
        """The first round that a newcomer takes part in."""
        raise NotImplementedError

    def on_report(self, report: m.Report) -> Effects:
        """Take in a report of a member, or repeat the decision that its sender has missed."""
        if self._is_news(report):
            self._desk.membership.heard_from(report.sender)
            self._desk.books.skipped(report)
            self._take(report)
            return []
        return self._answer(report)

    def _answer(self, report: m.Report) -> Effects:
        """Repeat the decision that a member has missed."""
        decision = self._decision_about(report)
        return [] if decision is None else [Send(report.sender, decision)]

    def advance(self) -> Effects:
        """Make every decision that can be made now."""
        raise NotImplementedError

    def held(self, message: m.Held) -> Effects:
        """Take note of a member that waits to be told where all meet."""
        return []

    def call_again(self) -> Effects:
        """Return the call to a meeting for those who have not heeded it."""
        return []

    def admit(self, worker: Address, start_step: int) -> Entry:
        """Let a worker in; return where it begins."""
        raise NotImplementedError

    def remove(self, worker: Address) -> None:
        """Expect nothing more of a worker."""

    def resume(self, past: Past) -> None:
        """Go on for a coordinator that is gone, from what members have told."""
        raise NotImplementedError

    def view_changed(self) -> None:
        """Work out anew whatever depends on who is in."""

    def knobs_turned(self, names: frozenset[str]) -> None:
        """Forget what was learnt under the old values."""

    def _is_news(self, report: m.Report) -> bool:
        membership = self._desk.membership
        is_member = report.sender not in self._desk.view.leavers
        return is_member and report.step >= membership.first_steps[report.sender] and self._is_fresh(report)

    def _is_fresh(self, report: m.Report) -> bool:
        raise NotImplementedError

    def _take(self, report: m.Report) -> None:
        raise NotImplementedError

    def _decision_about(self, report: m.Report) -> m.Decision | None:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive a restart, as plain data."""
        raise NotImplementedError

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        raise NotImplementedError

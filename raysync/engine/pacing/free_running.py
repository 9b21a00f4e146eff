"""`free_running`: nobody waits for anybody, until something is to be decided that all must hear at one step.

Members run by themselves to the last step. A knob, a checkpoint, a pause, a newcomer, a leaver or the end of the job
calls a meeting: all are held where they are, told the furthest step anyone has begun, run to it and wait there. What is
decided at that step is decided in lock step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from raysync.address import Address
from raysync.engine import messages as m
from raysync.engine.effects import Effects, Send
from raysync.engine.pacing.base import Desk, Entry
from raysync.engine.pacing.lock_step import LockStep
from raysync.engine.plain import Fields, dump, load

if TYPE_CHECKING:
    from raysync.engine.coordinator.recall import Past


class FreeRunning(LockStep):
    """Lock step, but only at the steps where all meet."""

    _OWN: ClassVar[Fields] = {
        "_calls": int,
        "_is_calling": bool,
        "_is_meeting": bool,
        "_held": dict[Address, int],
        "_high_step": int,
    }

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self._calls = 0
        self._is_calling = self._is_meeting = False
        self._held: dict[Address, int] = {}
        """Whoever has heeded the call, and its step."""
        self._high_step = -1
        """The furthest step that has been reported."""
        self._must_meet = False
        """A new coordinator does not know who has been told to meet."""

    repeats_often: ClassVar[bool] = True

    @property
    def steps_made(self) -> int:
        return max(self._high_step + 1, self._last_decided + 1)

    @property
    def step_after_a_death(self) -> int:
        return self._high_step + 2

    @property
    def _last_decided(self) -> int:
        return max(self._decisions, default=-1)

    def advance(self) -> Effects:
        desk = self._desk
        if desk.ending.is_decided:
            return []
        if not desk.view.members:
            self._next_step = min(self._high_step + 1, self._last_step)
            effects = super().advance()
            if desk.view.members:
                self._free()
            return effects
        is_apart = not self._is_meeting and not self._all_reported(self._next_step)
        if self._wants_meeting and not self._is_calling and is_apart:
            return self._call()
        effects = self._meet() if self._is_calling else []
        if self._is_calling or not self._all_reported(self._next_step):
            return effects
        return effects + super().advance()

    def resume(self, past: Past) -> None:
        """Members may have been held, or told where to meet: all are called anew."""
        super().resume(past)
        self._high_step = past.next_step - 1
        self._calls = max((told.call for told in past.members.values()), default=0)
        self._free()
        self._must_meet = True

    def held(self, message: m.Held) -> Effects:
        """Take note of a member that waits to be told where all meet."""
        missed = self._decisions.get(message.step)
        if missed is not None:
            return [Send(message.sender, missed)]  # it has not heard what was decided where it is
        if self._is_calling and message.number == self._calls and message.sender in self._desk.view.members:
            is_again = message.sender in self._held
            self._held[message.sender] = message.step
            return self.call_again() if is_again else []  # it waits for others, who may not have heard
        if message.number <= self._calls and not self._is_calling:
            return [Send(message.sender, m.Meet(number=message.number, step=self._next_step))]
        return []

    def call_again(self) -> Effects:
        """Return the call for those who have not heeded it."""
        if not self._is_calling:
            return []
        missing = [worker for worker in self._desk.view.members if worker not in self._held]
        return [Send(worker, m.Hold(number=self._calls)) for worker in missing]

    def admit(self, worker: Address, start_step: int) -> Entry:
        return super().admit(worker, start_step)._replace(free_until=self._last_step)

    @property
    def _last_step(self) -> int:
        return self._desk.spec.budget.steps - 1

    @property
    def _wants_meeting(self) -> bool:
        desk, membership = self._desk, self._desk.membership
        return bool(
            membership.joining
            or membership.wants_out
            or desk.wants_checkpoint
            or desk.board.has_waiting
            or desk.ending.reason is not None
            or self._must_meet
        )

    def _call(self) -> Effects:
        self._calls, self._is_calling, self._held = self._calls + 1, True, {}
        return self.call_again()

    def _meet(self) -> Effects:
        """Once all wait, tell them where to."""
        members = self._desk.view.members
        if not {*members} <= self._held.keys():
            return []
        self._next_step = max(self._held[worker] for worker in members)
        self._is_calling, self._is_meeting, self._held = False, True, {}
        told = m.Meet(number=self._calls, step=self._next_step)
        return [Send(worker, told) for worker in members]

    def _decide(self, step: int, seen_step: int) -> Effects:
        effects = super()._decide(step, seen_step)
        self._must_meet = False
        self._free()
        if self._desk.is_held and not self._desk.ending.is_decided:
            self._next_step, self._is_meeting = step + 1, True
        return effects

    def _free(self) -> None:
        """After a decision all run on, to the last step."""
        self._next_step, self._is_meeting = self._last_step, False
        self._absent.clear()

    def _take(self, report: m.Report) -> None:
        self._high_step = max(self._high_step, report.step)
        self._reports.setdefault(report.step, {})[report.sender] = report
        if report.step in self._absent:
            self._absent[report.step].discard(report.sender)
        self._desk.books.meter(report.step, {report.sender: report}, report.sender)
        if {*self._desk.membership.active(report.step)} <= self._reports[report.step].keys():
            self._desk.closed(report.step)
        oldest = self._high_step - 64
        if len(self._reports) > 256:
            kept = {step: found for step, found in self._reports.items() if step >= oldest or step == self._next_step}
            self._reports = kept

    def _is_fresh(self, report: m.Report) -> bool:
        return report.sender not in self._reports.get(report.step, {}) and report.step > self._last_decided

    def view_changed(self) -> None:
        self._absent.clear()
        self._held = {worker: step for worker, step in self._held.items() if worker in self._desk.view.members}

    def _free_until(self) -> int:
        return self._next_step if self._desk.is_held else self._last_step

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "free": dump(self, self._OWN)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        load(self, self._OWN, state["free"])

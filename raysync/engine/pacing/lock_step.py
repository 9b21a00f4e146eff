"""`lock_step`: one decision about a step for all workers, made once all of them have reported what it rests on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from raysync.address import Address
from raysync.engine import messages as m
from raysync.engine.effects import Effects, Send
from raysync.engine.exchange import exchange_of
from raysync.engine.pacing.base import Desk, Entry, Pacing
from raysync.engine.pacing.lateness import Lateness
from raysync.engine.plain import Fields, dump, load
from raysync.sync.base import Choice, StepContext

if TYPE_CHECKING:
    from raysync.engine.coordinator.recall import Past

_REMEMBERED_STEPS = 4


class LockStep(Pacing):
    """All workers make step s before any makes step s + 1; where decisions run ahead, s + 2."""

    _FIELDS: ClassVar[Fields] = {
        "round": int,
        "_next_step": int,
        "_metered_step": int,
        "_round_participants": tuple[Address, ...] | None,
        "_reports": dict[int, dict[Address, m.Report]],
        "_decisions": dict[int, m.Decision],
        "_memory": dict[str, float],
    }

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self._lead, self._exchange = desk.spec.decision_lead, exchange_of(desk.spec)  # no knob changes them
        self.round = -1
        """The last synchronisation decided on."""
        self._next_step = 0
        self._metered_step = -1
        self._round_participants: tuple[Address, ...] | None = None
        self._reports: dict[int, dict[Address, m.Report]] = {}
        self._absent: dict[int, set[Address]] = {}
        """Whose report of a step is missing, where that has been worked out since the view changed."""
        self._decisions: dict[int, m.Decision] = {}
        """Recent ones by step."""
        self._memory: dict[str, float] = {}
        """What the strategy asked to remember."""
        self._lands_late = desk.spec.strategy.needs.lands_late
        self._landed: dict[Address, int] = {}
        """The last round that each member has told it has taken in, where rounds land late."""
        self._landed_by_all = -1
        """That of those who have told nothing yet."""
        self._pushed_step = -1
        """The step that the last round ended."""
        self._lateness = Lateness()

    @property
    def steps_made(self) -> int:
        return self._next_step

    @property
    def next_step(self) -> int:
        return self._next_step

    @property
    def step_after_a_death(self) -> int:
        return self._next_step + 1

    @property
    def next_round(self) -> int:
        return self.round + 1

    def advance(self) -> Effects:
        desk = self._desk
        effects: Effects = []
        while not desk.ending.is_decided:
            if not desk.view.members:
                if not desk.membership.joining:
                    desk.ending.without_workers()
                    break
                effects += desk.change_view(self._next_step, admitted=tuple(sorted(desk.membership.joining)))
            needed = self._next_step - self._lead
            self._leave_the_late()
            if not self._all_reported(needed):
                break
            if effects or desk.spec.budget.target is not None:
                desk.books.settle()  # what comes next depends on it
            if desk.waits_for_checkpoint:
                is_complete = self._all_reported(self._next_step)
                if not (is_complete and desk.wants_checkpoint and self._is_flying()):
                    effects += desk.begin_checkpoint() if is_complete else []
                    break
            elif desk.is_held:
                break
            if desk.board.has_waiting and not self._all_reported(self._next_step):
                break  # a round may still be open, and has one setting of the knobs on all shards
            effects += self._decide(self._next_step, needed)
        return effects

    def admit(self, worker: Address, start_step: int) -> Entry:
        self._landed[worker] = self.round  # it fetches what that came to
        return Entry(start_step, self.round, self._round_participants)

    def resume(self, past: Past) -> None:
        self._next_step, self.round = past.next_step, past.round
        self._metered_step = self._next_step - 1
        self._decisions = {decision.step: decision for decision in past.decisions}
        self._fill_in(past)
        synced = [found for found in self._decisions.values() if found.sync and found.round == self.round]
        self._round_participants = synced[-1].participants if synced else None
        self._leave_again(past)

    def _fill_in(self, past: Past) -> None:
        """Make decisions again that were told of, and that no member has heard of, or not every one."""
        members, exchange = tuple(sorted(past.view.members)), exchange_of(self._desk.spec)
        for told in past.told if members else ():
            if told.step in self._decisions:
                continue
            before = self._decisions.get(told.step - 1)
            self._memory = dict(before.memory) if before is not None else {}
            late = tuple(who for who in members if who.index in told.late)
            active = tuple(who for who in members if who not in late)
            choice = self._choose(told.step, told.step - self._lead, active or members)
            participants = self._those_of(choice, late, active)
            self._decisions[told.step] = m.Decision(
                view=past.view.number,
                step=told.step,
                sync=told.sync,
                reason=told.reason,
                knobs=past.knobs,
                round=told.round,
                participants=participants if told.sync and (choice.sync or late) else None,
                num_participants=len(participants or members) if told.sync else 0,
                payload_kind=exchange.payload if choice.sync else exchange.forced_payload,
                final=self._desk.is_last(told.step),
                lands=True,
                free_until=self._free_until(),
                life=past.life,
                last_sync_step=told.step if told.sync else self._desk.books.metrics.last_sync_step,
                memory=self._memory,
                late=late,
            )
        if past.last is not None:
            self._memory = dict(past.last.memory)

    def _leave_again(self, past: Past) -> None:
        """Who was left behind is so still; others who are as far behind must have been, too."""
        last = self._decisions.get(self._next_step - 1)
        late = () if last is None else last.late
        behind = [who for who, told in past.members.items() if told.step < self._next_step - 1 or who in late]
        self._lateness.leave(behind if self._desk.spec.straggler_deadline is not None else late)

    @property
    def due_s(self) -> float | None:
        desk, step = self._desk, self._next_step
        due_s = self._lateness.due_s(step, desk.spec.straggler_deadline)
        if due_s is None or desk.ending.is_decided or self._all_reported(step):
            return None
        return due_s if self._may_leave(step, self._absent[step]) else None

    def remove(self, worker: Address) -> None:
        self._lateness.forget(worker)

    def _may_leave(self, step: int, missing: set[Address]) -> bool:
        """Return whether a step may be decided without some: not the last one, nor where all are to be copied, nor if
        nobody is left.
        """
        needs_all = self._desk.is_last(step) or self._desk.waits_for_checkpoint
        return not needs_all and len(missing) < len(self._desk.membership.active(step))

    def _leave_the_late(self) -> None:
        due_s = self.due_s
        if due_s is not None and self._desk.books.now_s >= due_s:
            self._lateness.leave(self._absent[self._next_step])

    def _answer(self, report: m.Report) -> Effects:
        """Tell a member that was left behind where the others are; any other that it has missed a decision."""
        desk = self._desk
        if report.sender not in self._lateness.behind or report.step >= self._next_step:
            return super()._answer(report)
        ahead = m.CatchUp(
            view=desk.view,
            knobs=desk.board.knobs,
            step=self._next_step,
            round=self.round,
            participants=self._round_participants,
        )
        return [Send(report.sender, ahead)]

    def view_changed(self) -> None:
        self._absent.clear()
        self._meter_complete()

    def knobs_turned(self, names: frozenset[str]) -> None:
        if "delta" in names:
            self._memory = {}

    def _all_reported(self, step: int) -> bool:
        if step < 0:
            return True
        if step not in self._absent:
            self._absent[step] = {*self._desk.membership.active(step)} - self._reports.get(step, {}).keys()
        missing = self._absent[step]
        return not missing or (missing <= self._lateness.behind and self._may_leave(step, missing))

    def _is_fresh(self, report: m.Report) -> bool:
        is_known = report.sender in self._reports.get(report.step, {})
        first = self._next_step - (0 if report.sender in self._lateness.behind else max(1, self._lead))
        return report.step >= first and not is_known

    def _take(self, report: m.Report) -> None:
        self._reports.setdefault(report.step, {})[report.sender] = report
        if report.step == self._next_step:
            self._lateness.reported(report.sender, report.step, self._desk.books.now_s)
        if report.step in self._absent:
            self._absent[report.step].discard(report.sender)
        self._take_landing(report)
        self._meter_complete()

    def _decision_about(self, report: m.Report) -> m.Decision | None:
        return self._decisions.get(report.step)

    def _meter_complete(self) -> None:
        """Turn every step that all have reported into metrics, once, in order."""
        for step in sorted(step for step in self._reports if step > self._metered_step):
            if not self._all_reported(step) and (self._lead or step >= self._next_step):
                break
            self._metered_step = step
            self._desk.books.meter(step, self._reports[step])

    def _is_flying(self) -> bool:
        """Whether somebody has not taken in the last round yet."""
        members = self._desk.view.members if self._lands_late else ()
        return any(self._landed.get(worker, self._landed_by_all) < self.round for worker in members)

    def _take_landing(self, report: m.Report) -> None:
        """Take note of what a member has taken in, and of how many steps it has made meanwhile."""
        if not self._lands_late or report.landed <= self._landed.get(report.sender, self._landed_by_all):
            return
        self._landed[report.sender] = report.landed
        if report.landed == self.round and 0 <= self._pushed_step < report.step:
            self._desk.books.metrics.read(report.sender, report.step - self._pushed_step - 1)

    def _put_off(self, choice: Choice) -> Choice:
        """Return what a strategy chose while a round is on its way: nothing begins, and it forgets that it asked."""
        why = f"{choice.reason}; put off, since round {self.round} is on its way"
        return replace(choice, sync=False, reason=why, participants=None, memory=self._memory)

    def _decide(self, step: int, seen_step: int) -> Effects:
        desk, is_flying = self._desk, self._is_flying()
        lands_first = is_flying and (desk.wants_checkpoint or desk.board.has_waiting)
        effects = [] if lands_first else desk.turn_knobs(step)
        late = tuple(who for who in desk.membership.active(step) if who in self._lateness.behind)
        active = tuple(who for who in desk.membership.active(step) if who not in late)
        admitted = tuple(sorted(desk.membership.joining))
        leaving = tuple(worker for worker in desk.membership.wants_out if worker in active)
        choice = self._choose(step, seen_step, active)
        forced = self._forced(step, admitted, leaving)
        if is_flying and choice.sync:
            choice = self._put_off(choice)
        if forced is not None:
            choice = replace(choice, sync=True, reason=forced, participants=None)
        if late:
            choice = self._without(late, active, choice)
        self._lateness.over(step)
        self._memory = dict(choice.memory)
        if choice.sync:
            self.round, self._round_participants, self._pushed_step = self.round + 1, choice.participants, step
        self._next_step, desk.ending.is_decided = step + 1, desk.is_last(step)
        if admitted or leaving:
            effects += desk.change_view(step + 1, admitted=admitted, leaving=leaving)
        decision = m.Decision(
            view=desk.view.number,
            step=step,
            sync=choice.sync,
            reason=choice.reason,
            knobs=desk.board.knobs,
            round=self.round,
            participants=self._round_participants if choice.sync else None,
            num_participants=len(choice.participants or active) if choice.sync else 0,
            payload_kind=self._exchange.payload if forced is None else self._exchange.forced_payload,
            leavers=leaving,
            final=desk.ending.is_decided,
            lands=lands_first or forced is not None or desk.is_held,
            free_until=self._free_until(),
            life=desk.view.life,
            last_sync_step=step if choice.sync else desk.books.metrics.last_sync_step,
            memory=self._memory,
            late=late,
        )
        self._remember(decision)
        desk.record(decision, choice)
        return [*effects, *(Send(worker, decision) for worker in active)]

    def _without(self, late: tuple[Address, ...], active: tuple[Address, ...], choice: Choice) -> Choice:
        """Return what was chosen with those alone who are not behind, and say so."""
        why = f"{choice.reason}; without {', '.join(who.spoken for who in late)}, who came too late"
        return replace(choice, reason=why, participants=self._those_of(choice, late, active) if choice.sync else None)

    def _those_of(
        self, choice: Choice, late: tuple[Address, ...], active: tuple[Address, ...]
    ) -> tuple[Address, ...] | None:
        """Return who contributes to what was chosen, without those who are behind; None for all."""
        if not late:
            return choice.participants
        asked = active if choice.participants is None else choice.participants
        return tuple(who for who in asked if who not in late) or active

    def _free_until(self) -> int:
        """Return the next step that is decided about, where not every step is."""
        return 0

    def _choose(self, step: int, seen_step: int, active: tuple[Address, ...]) -> Choice:
        desk, reports = self._desk, self._reports.get(seen_step, {})
        context = StepContext(
            step=step,
            last_sync_step=desk.books.metrics.last_sync_step,
            members=active,
            values=tuple(reports[worker].values for worker in active if worker in reports),
            total_steps=desk.spec.budget.steps,
            steps_per_lap=desk.steps_per_lap(len(active)),
            lr_at=desk.spec.lr_at,
            seed=desk.spec.seed,
            memory=self._memory,
        )
        return desk.spec.strategy.decide(context)

    def _forced(self, step: int, admitted: tuple[Address, ...], leaving: tuple[Address, ...]) -> str | None:
        """Return why this step must synchronise whatever the strategy says, if it must."""
        if self._desk.is_last(step):
            return self._desk.ending.reason or "the last step: every worker contributes to the final model"
        if admitted:
            return f"{admitted[0].spoken} joins and needs the current model"
        if leaving:
            return f"{leaving[0].spoken} leaves and hands its work over"
        return None

    def _remember(self, decision: m.Decision) -> None:
        self._decisions[decision.step] = decision
        oldest = decision.step - _REMEMBERED_STEPS - self._lead
        self._reports = {step: reports for step, reports in self._reports.items() if step >= oldest}
        self._decisions = {step: decision for step, decision in self._decisions.items() if step >= oldest}
        self._absent = {step: absent for step, absent in self._absent.items() if step >= oldest}

    def state_dict(self) -> dict[str, Any]:
        return dump(self, self._FIELDS)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        load(self, self._FIELDS, state)
        self._absent.clear()
        self._landed, self._landed_by_all = {}, self.round  # nothing is on its way where states are saved

"""`bounded`: every worker keeps its own clock, and may read as long as the slowest is within the staleness bound.

A worker at clock c reads once every live worker has pushed clock c - s - 1 (`raysync.sync.bound`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from raysync.address import Address
from raysync.engine import messages as m
from raysync.engine.effects import Effects, Send
from raysync.engine.exchange import exchange_of
from raysync.engine.pacing.base import Desk, Entry, Pacing
from raysync.engine.pacing.read_gate import ReadGate
from raysync.sync.bound import may_read, staleness

if TYPE_CHECKING:
    from raysync.engine.coordinator.recall import Past


class Bounded(Pacing):
    """A worker reports once its push of a clock is on the shards, and is granted its next read."""

    applies_on_arrival: ClassVar[bool] = True

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self.gate = ReadGate()
        self._granted: dict[Address, m.Decision] = {}
        """Each worker's last."""

    @property
    def steps_made(self) -> int:
        return self.gate.high_clock + 1

    @property
    def next_step(self) -> int:
        return self.gate.low_clock + 1

    @property
    def step_after_a_death(self) -> int:
        return self.gate.low_clock + 1

    @property
    def next_round(self) -> int:
        return 0

    def advance(self) -> Effects:
        desk, gate = self._desk, self.gate
        effects: Effects = []
        if desk.membership.joining and not desk.ending.is_decided:
            effects += desk.change_view(gate.low_clock + 1, admitted=tuple(sorted(desk.membership.joining)))
        if not desk.view.members and not desk.ending.is_decided:
            desk.ending.without_workers()
        all_held = bool(desk.view.members) and len(gate.waiting) == len(desk.view.members)
        if desk.waits_for_checkpoint:
            return effects + desk.begin_checkpoint() if all_held else effects
        if desk.is_held:
            return effects
        if gate.waiting and desk.board.has_waiting:
            effects += desk.turn_knobs(min(gate.waiting.values()))
        if all_held and desk.is_last(min(gate.waiting.values())):
            desk.ending.is_decided = True
        conditions = (
            gate.low_clock,
            desk.board.knobs.version,
            desk.ending.reason,
            desk.ending.is_decided,
            desk.view.number,
        )
        for worker, clock in gate.worth_a_look(conditions):
            effects += self._grant(worker, clock)
        return effects

    def resume(self, past: Past) -> None:
        """A member that waits to read says so again; one that reads is at the clock it has pushed."""
        for worker in past.view.members:
            told = past.members.get(worker)
            if told is not None:
                self.gate.admit(worker, told.step + told.is_synced)
        self.gate.high_clock = max(self.gate.clocks.values(), default=past.told_step)
        self.gate.begin_at(past.told_step)

    def admit(self, worker: Address, start_step: int) -> Entry:
        step = max(start_step, self._desk.membership.joining[worker].step)
        self.gate.admit(worker, step)
        self._granted.pop(worker, None)
        return Entry(step, step - 1)

    def remove(self, worker: Address) -> None:
        self.gate.remove(worker)

    def _is_fresh(self, report: m.Report) -> bool:
        return report.step > self.gate.clocks[report.sender]

    def _take(self, report: m.Report) -> None:
        low_clock = self.gate.low_clock
        self.gate.pushed(report.sender, report.step)
        for clock in range(low_clock + 1, self.gate.low_clock + 1):
            self._desk.closed(clock)
        self._desk.books.meter(report.step, {report.sender: report}, report.sender)

    def _decision_about(self, report: m.Report) -> m.Decision | None:
        decision = self._granted.get(report.sender)
        return decision if decision is not None and decision.step == report.step else None

    def _grant(self, worker: Address, clock: int) -> Effects:
        """Let a worker read for its next clock if the bound allows; the last one waits for every worker's push."""
        desk, low_clock = self._desk, self.gate.low_clock
        allowed, reason = may_read(clock + 1, low_clock, desk.spec.strategy.needs.staleness_limit)
        if not desk.ending.is_decided and (desk.is_last(clock) or not allowed):
            return []
        desk.books.metrics.read(worker, staleness(clock + 1, low_clock))
        leaving = (worker,) if worker in desk.membership.wants_out and not desk.ending.is_decided else ()
        effects = desk.change_view(low_clock + 1, leaving=leaving) if leaving else []
        self.gate.release(worker)
        decision = m.Decision(
            view=desk.view.number,
            step=clock,
            sync=True,
            reason=(desk.ending.reason or "the last clock") if desk.ending.is_decided else reason,
            knobs=desk.board.knobs,
            round=clock,
            payload_kind=exchange_of(desk.spec).payload,
            leavers=leaving,
            final=desk.ending.is_decided,
            life=desk.view.life,
        )
        self._granted[worker] = decision
        return [*effects, Send(worker, decision)]

    def state_dict(self) -> dict[str, Any]:
        return {"gate": self.gate.state_dict(), "granted": msgspec.to_builtins(self._granted)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.gate.load_state_dict(state["gate"])
        self._granted = msgspec.convert(state["granted"], dict[Address, m.Decision], strict=False)

"""The coordinator's books: the job's history as numbered events, and the metrics that reports are turned into.

No core waits for them: what is to be written is put off (`later`) until the decisions have left, and written in order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from raysync import events
from raysync.address import Address
from raysync.control.view import View
from raysync.engine import messages as m
from raysync.engine.coordinator.event_log import EventLog
from raysync.engine.coordinator.knob_board import Turned
from raysync.engine.coordinator.step_metrics import StepMetrics
from raysync.engine.effects import Effects, Note
from raysync.spec import JobSpec
from raysync.sync.base import Choice

if TYPE_CHECKING:
    from raysync.engine.coordinator.recall import Past


class Books:
    """Writes down what happens; `now_s` and `knob_version` are what the next events carry."""

    def __init__(self, spec: JobSpec, on_metrics: Callable[[Mapping[str, float]], None]) -> None:
        self.metrics = StepMetrics(spec)
        self.knob_version = 0
        self._noticed = ""
        self._log, self._on_metrics = EventLog(), on_metrics
        self._unsettled: list[Callable[[], None]] = []
        """What is still to be written."""

    @property
    def now_s(self) -> float:
        """What the clock said when the host called last."""
        return self._log.now_s

    def begin(self, now_s: float) -> None:
        """A call of the host begins: write what the last one put off."""
        self.settle()
        self._log.now_s = now_s

    def settle(self) -> None:
        """Write what was put off."""
        unsettled, self._unsettled = self._unsettled, []
        for write in unsettled:
            write()

    def take(self) -> Effects:
        """Return what has happened since the last call."""
        self.settle()
        return [Note(event) for event in self._log.take()]

    def resume(self, past: Past) -> None:
        """Go on for a coordinator that is gone; what it decided and had no time to tell is told."""
        self.knob_version = past.knobs.version
        last = past.last
        if last is not None:
            self.metrics.resume(last)
        for decision in past.decisions:
            if decision.step > past.told_step:
                told = events.Decision(decision.sync, decision.reason, decision.round, late=_late(decision))
                self._log.add(told, decision.step, decision.knobs.version)

    # Later

    def meter(self, step: int, reports: Mapping[Address, m.Report], worker: Address | None = None) -> None:
        """Turn reports of a step into metrics, later."""
        self._unsettled.append(partial(self._meter, step, reports, worker, self.knob_version))

    def decided(self, decision: m.Decision, choice: Choice) -> None:
        """Write down a decision, later."""
        self._unsettled.append(partial(self._decided, decision, choice))

    def _meter(self, step: int, reports: Mapping[Address, m.Report], worker: Address | None, version: int) -> None:
        found = self.metrics.metrics(reports, self._log.now_s)
        self._log.add(events.Metrics(found), step, version, None if worker is None else worker.index)
        self._on_metrics(found)

    def _decided(self, decision: m.Decision, choice: Choice) -> None:
        self.metrics.decided(decision.step, choice)
        scores = {str(who.index): float(f"{score:.6g}") for who, score in choice.scores.items() if math.isfinite(score)}
        told = events.Decision(
            choice.sync, choice.reason, decision.round, choice.score, scores or msgspec.UNSET, _late(decision)
        )
        self._log.add(told, decision.step, decision.knobs.version)
        if choice.notice is not None:
            self._log.add(events.Notice(choice.notice), decision.step, decision.knobs.version)

    def skipped(self, report: m.Report) -> None:
        """Write down which batches count for nothing, later."""
        for found in report.skipped:
            told = events.Divergence(found.who.spoken, found.problem, found.parameter)
            write = partial(self._log.add, told, found.step, self.knob_version, found.who.index)
            self._unsettled.append(write)

    # At once

    def noticed(self, text: str) -> None:
        """Whoever runs the job should know this before its first step; said once."""
        if text != self._noticed:
            self._noticed = text
            self._log.add(events.Notice(text), 0, self.knob_version)

    def turned(self, step: int, change: Turned) -> None:
        """Knobs are in force from a step on."""
        self.settle()
        self.knob_version = change.version
        self._log.add(change.told, step, change.version)

    def viewed(
        self,
        step: int,
        view: View,
        joined: Sequence[Address] = (),
        left: Sequence[Address] = (),
        died: Sequence[Address] = (),
    ) -> None:
        """Who is in has changed."""
        members = (_numbers(who) for who in (view.members, joined, left, died))
        self._log.add(events.ViewChange(view.number, *members), step, self.knob_version)

    def parted(self, step: int, farewell: m.Farewell) -> None:
        """A worker has said farewell, with metrics of the model it saw last."""
        self._log.add(events.Metrics(farewell.metrics), step, self.knob_version, farewell.sender.index)

    def judged(self, told: m.Judged) -> None:
        """The evaluator has judged the model of a step, once."""
        found = self.metrics.judged(told)
        if found:
            self._log.add(events.Metrics(found), told.step, self.knob_version)
            self._on_metrics(found)

    def checkpointed(self, step: int, checkpoint: int, round: int) -> None:
        """A checkpoint is complete."""
        self._log.add(events.CheckpointTaken(checkpoint, round), step, self.knob_version)

    def checkpoint_failed(self, step: int, checkpoint: int, round: int, who: Address, why: str) -> None:
        """A checkpoint could not be written; the next one is tried."""
        self._log.add(events.CheckpointFailed(checkpoint, round, str(who), why), step, self.knob_version)

    def going_on(self, step: int, checkpoint: int, round: int) -> dict[str, Any]:
        """Return the books as they are for whoever goes on from a checkpoint: it is complete there. Here it is once all
        of it is kept.
        """
        self.checkpointed(step, checkpoint, round)
        state = self.state_dict()
        self._log.retract()
        return state

    def state_dict(self) -> dict[str, Any]:
        """Return the books, with nothing put off."""
        self.settle()
        return {"metrics": self.metrics.state_dict(), "log": self._log.state_dict(), "knob_version": self.knob_version}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the books."""
        self.metrics.load_state_dict(state["metrics"])
        self._log.load_state_dict(state["log"])
        self.knob_version = state["knob_version"]


def _numbers(workers: Sequence[Address]) -> list[int]:
    return [worker.index for worker in workers]


def _late(decision: m.Decision) -> list[int] | msgspec.UnsetType:
    return _numbers(decision.late) or msgspec.UNSET

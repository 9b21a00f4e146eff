"""A worker's share in evaluations: workers that show the same model judge a part of the data each, at the same step, so
that none waits for another; where each shows its own, the first one judges it alone. With an evaluator the first one
only sends it the model.
"""

from __future__ import annotations

from raysync.address import EVALUATOR, Address
from raysync.compress import verbatim
from raysync.control.view import View
from raysync.engine import messages as m
from raysync.engine.effects import Effects, Send
from raysync.engine.exchange import exchange_of
from raysync.engine.pacing import pacing_of
from raysync.engine.training.shared_vector import SharedVector
from raysync.engine.training.trainer import Trainer
from raysync.spec import JobSpec
from raysync.tasks.workload import WHOLE, Part

_PATIENCE = 5
"""So many evaluations are left out before an evaluator that has not answered is sent a model all the same."""


class Judging:
    """Judges what the worker shows."""

    def __init__(self, address: Address, spec: JobSpec, trainer: Trainer, shared: SharedVector) -> None:
        self._address, self._every, self._trainer, self._shared = address, spec.eval.every, trainer, shared
        self._has_evaluator = spec.eval.on == "evaluator"
        self._sent_step: int | None = None
        """Of the model that the evaluator is judging."""
        self._judges_landings = spec.strategy.needs.lands_late
        """Rounds land at another step on each worker: what is judged is what has landed, when it has."""
        self._shown_since, self._is_due = -1, True
        self._is_split = exchange_of(spec).shows_common and not pacing_of(spec).applies_on_arrival

    @property
    def round(self) -> int:
        """The last round whose outcome the worker shows."""
        return max(self._shared.rounds, default=-1)

    def judge(self, step: int, view: View) -> m.Judgement | None:
        """Return this worker's part of the evaluation at a step, given the view that deals out its data; None where it
        has none.
        """
        is_due = self._is_due if self._judges_landings else step % self._every == 0
        self._is_due = False
        part = self._part(view) if is_due and not self._has_evaluator else None
        if part is None:
            return None
        metrics = self._trainer.evaluate(part)
        return m.Judgement(self.round, *part, self._trainer.num_judged(part), metrics)

    def showing_since(self, step: int) -> None:
        """What is shown is what the members of a step begin with: due if an evaluation was, since the last time."""
        self._is_due = self._is_due or step // self._every > self._shown_since // self._every
        self._shown_since = step

    def hand_over(self, step: int, view: View) -> Effects:
        """Return the model for the evaluator, if it is this worker's to send at a step and the evaluator is free; one
        that has not answered for long has died, and its successor waits for a model.
        """
        if not self._has_evaluator or step % self._every != 0 or view.members[:1] != (self._address,):
            return []
        if self._sent_step is not None and step - self._sent_step < _PATIENCE * self._every:
            return []
        self._sent_step = step
        payload = verbatim.encode(self._trainer.shown())
        return [Send(EVALUATOR, m.Judge(sender=self._address, step=step, round=self.round, payload=payload))]

    def judged(self, answer: m.SendNext) -> None:
        """The evaluator is free."""
        if answer.step == self._sent_step:
            self._sent_step = None

    def judge_all(self) -> dict[str, float]:
        """Return the metrics over all of the evaluation data, as they are told."""
        metrics = self._trainer.evaluate()
        return {**metrics, "eval/round": float(self.round)} if metrics else {}

    def _part(self, view: View) -> Part | None:
        if self._is_split:
            return Part(view.members.index(self._address), len(view.members))
        return WHOLE if view.members[:1] == (self._address,) else None

"""A stage's share in evaluations, and the whole model put together from its stages.

At an evaluation every stage sends what it shows to the evaluator: those of the first pipeline where all pipelines show
the same, those of all of them where each has its own, whose mean is then judged.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from raysync.address import EVALUATOR, Address
from raysync.compress import verbatim
from raysync.control.view import View
from raysync.engine import messages as m
from raysync.engine.effects import Effects, Send
from raysync.engine.exchange import exchange_of
from raysync.engine.stage.cutting import Chain, cut_model
from raysync.engine.training.replica import Replica
from raysync.engine.training.shared_vector import SharedVector
from raysync.engine.training.trainer import Trainer
from raysync.spec import JobSpec
from raysync.tasks.workload import Workload

_PATIENCE = 5
"""With an evaluator that has not answered, one evaluation of so many is tried all the same."""


class Showing:
    """Sends what the stage shows."""

    def __init__(self, address: Address, spec: JobSpec, trainer: Trainer, shared: SharedVector) -> None:
        self._address, self._every, self._trainer, self._shared = address, spec.eval.every, trainer, shared
        self._shows_common = exchange_of(spec).shows_common
        self._sent_step: int | None = None

    @property
    def round(self) -> int:
        """The last round whose outcome the stage shows."""
        return max(self._shared.rounds, default=-1)

    def judge(self, step: int, view: View) -> m.Judgement | None:
        """Return nothing: no stage has the whole model."""
        return None

    def hand_over(self, step: int, view: View) -> Effects:
        """Return what the stage shows, for the evaluator, if it is its turn and the evaluator is free."""
        is_mine = not self._shows_common or view.members[:1] == (self._address,)
        if step % self._every != 0 or not is_mine:
            return []
        if self._sent_step is not None and step % (_PATIENCE * self._every) != 0:
            return []  # all that have a part in a model try again at the same steps
        self._sent_step = step
        judge = m.Judge(
            sender=self._address,
            step=step,
            round=self.round,
            payload=verbatim.encode(self._trainer.shown()),
            replicas=1 if self._shows_common else len(view.members),
        )
        return [Send(EVALUATOR, judge)]

    def judged(self, answer: m.SendNext) -> None:
        """The evaluator is free."""
        if self._sent_step is not None and answer.step >= self._sent_step:
            self._sent_step = None

    def judge_all(self) -> dict[str, float]:
        """Return nothing: no stage has the whole model."""
        return {}


class Whole:
    """The whole model, which one process can hold: to judge it and to save it."""

    def __init__(self, spec: JobSpec, workload: Workload, device: str = "cpu") -> None:
        self._chain = Chain(cut_model(workload, spec.scale.stages, spec.seed, device).modules)
        self._parts = [Replica(spec, workload, device, is_trained=False, module=part) for part in self._chain.stages]
        self._workload = workload

    @property
    def size_bytes(self) -> int:
        """What its parameters and float buffers take."""
        return sum(4 * (len(part.flat) + len(part.extras())) for part in self._parts)

    def load(self, payloads: Sequence[bytes]) -> None:
        """Take over what every stage shows."""
        self.load_vectors([verbatim.decode(payload) for payload in payloads])

    def load_vectors(self, vectors: Sequence[Tensor]) -> None:
        """Take over parameters and buffers of every stage."""
        with torch.no_grad():
            for part, vector in zip(self._parts, vectors, strict=True):
                size = len(part.flat)
                part.flat.copy_(vector[:size])
                part.load_extras(vector[size:])

    def evaluate(self) -> dict[str, float]:
        """Return the metrics over the evaluation data."""
        return self._workload.evaluate(self._chain)

    def state_dict(self) -> dict[str, Tensor]:
        """Return its state_dict, under the names of the model before it was cut."""
        return {name: value.cpu() for name, value in self._chain.whole_state_dict().items()}

"""The evaluator core: judges models beside the training, which does not wait for it.

The first worker sends it the model of a round, and the next one only when that is judged: a slow evaluator judges fewer
models. Where two come, the newer one counts.
It holds nothing of a job: a new one in its place judges whatever comes next.
"""

from __future__ import annotations

from typing import Any

from raysync.address import COORDINATOR, Address
from raysync.compress import verbatim
from raysync.engine import messages as m
from raysync.engine.effects import Effects, Send
from raysync.engine.ports import Probe, no_probe
from raysync.engine.training.replica import Replica
from raysync.errors import ProtocolError, TaskError
from raysync.spec import JobSpec
from raysync.tasks.workload import Workload

_MAX_BYTES = 1 << 30


class Evaluator:
    """Judges one model at a time, on all of the evaluation data."""

    done = False
    """An evaluator waits for models until it is stopped."""

    def __init__(
        self, address: Address, spec: JobSpec, workload: Workload, *, device: str = "cpu", probe: Probe = no_probe
    ) -> None:
        self.address, self.spec, self._probe = address, spec, probe
        self._workload, self._replica = workload, Replica(spec, workload, device, is_trained=False)
        size_bytes = 4 * (len(self._replica.flat) + len(self._replica.extras()))
        if size_bytes > _MAX_BYTES:
            problem = f"the model has {size_bytes / 2**30:.1f} GiB, an evaluator takes 1 GiB; set eval.on: workers"
            raise TaskError(workload.name, problem)
        self._model: m.Judge | None = None
        """What is to be judged next."""
        self._judged: m.Judged | None = None
        """What was told last, in case it was not heard."""

    def handle(self, message: m.Message, now_s: float = 0.0) -> Effects:
        """Take in a model, unless a newer one is known."""
        if not isinstance(message, m.Judge):
            raise ProtocolError(str(self.address), f"an evaluator does not expect {type(message).__name__}")
        known = [found.step for found in (self._model, self._judged) if found is not None]
        if message.step > max(known, default=-1):
            self._model = message
        return []

    def retry(self, now_s: float = 0.0) -> Effects:
        """Return what was told last."""
        return [] if self._judged is None else [Send(COORDINATOR, self._judged)]

    def is_ready(self, now_s: float = 0.0) -> bool:
        """Return whether a model waits."""
        return self._model is not None

    def work(self, now_s: float = 0.0) -> Effects:
        """Judge it."""
        model, self._model = self._model, None
        if model is None:
            return []
        self._probe("evaluator.judging")
        vector = verbatim.decode(model.payload)
        size = len(self._replica.flat)
        metrics = self._replica.evaluate(vector[:size], vector[size:])
        judgement = m.Judgement(model.round, 0, 1, len(self._workload.eval_data), metrics)
        self._judged = m.Judged(sender=self.address, step=model.step, judgement=judgement)
        return [*self.retry(), Send(model.sender, m.SendNext(step=model.step))]

    def settle(self) -> Effects:
        """Return nothing: an evaluator leaves nothing for later."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: it has promised nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begin anew."""

"""The evaluator core: judges models beside the training, which does not wait for it.

The first worker, or every stage and replica that has a part in it, sends it the model of a round, and the next one only
when that is judged: a slow evaluator judges fewer models. Where two come, the newer one counts.
It holds nothing of a job: a new one in its place judges whatever comes next.
"""

from __future__ import annotations

from typing import Any

from raysync.address import COORDINATOR, Address
from raysync.engine import messages as m
from raysync.engine.effects import Effects, Send
from raysync.engine.evaluator.judge import judge_of
from raysync.engine.ports import Probe, no_probe
from raysync.errors import ProtocolError, TaskError
from raysync.spec import JobSpec
from raysync.tasks.workload import Workload

_MAX_BYTES = 1 << 30
_KEPT = 4
"""So many models that lack a part are kept, the newest."""


class Evaluator:
    """Judges one model at a time, on all of the evaluation data."""

    done = False
    """An evaluator waits for models until it is stopped."""

    def __init__(
        self, address: Address, spec: JobSpec, workload: Workload, *, device: str = "cpu", probe: Probe = no_probe
    ) -> None:
        self.address, self.spec, self._probe = address, spec, probe
        self._workload, self._judge = workload, judge_of(spec, workload, device)
        size_bytes = self._judge.size_bytes
        if size_bytes > _MAX_BYTES:
            problem = f"the model has {size_bytes / 2**30:.1f} GiB, an evaluator takes 1 GiB; set eval.on: workers"
            raise TaskError(workload.name, problem)
        self._parts: dict[int, dict[Address, m.Judge]] = {}
        """By step: what has come of its model, from all who have a part in it."""
        self._waiting: dict[Address, m.Judge] | None = None
        """What is to be judged next."""
        self._newest = -1
        """The step of the newest whole model that has come."""
        self._judged: m.Judged | None = None
        """What was told last, in case it was not heard."""

    def handle(self, message: m.Message, now_s: float = 0.0) -> Effects:
        """Take in a model, unless a newer one is known."""
        if not isinstance(message, m.Judge):
            raise ProtocolError(str(self.address), f"an evaluator does not expect {type(message).__name__}")
        if message.step > self._newest:
            parts = self._parts.setdefault(message.step, {})
            while len(self._parts) > _KEPT:
                del self._parts[min(self._parts)]
            parts[message.sender] = message
            senders = [sender.stage for sender in parts]
            if all(senders.count(stage) >= message.replicas for stage in range(self.spec.scale.stages)):
                self._waiting, self._newest = parts, message.step
                self._parts = {step: found for step, found in self._parts.items() if step > message.step}
        return []

    def retry(self, now_s: float = 0.0) -> Effects:
        """Return what was told last."""
        return [] if self._judged is None else [Send(COORDINATOR, self._judged)]

    def is_ready(self, now_s: float = 0.0) -> bool:
        """Return whether a model waits."""
        return self._waiting is not None

    def work(self, now_s: float = 0.0) -> Effects:
        """Judge it."""
        parts, self._waiting = self._waiting, None
        if not parts:
            return []
        self._probe("evaluator.judging")
        first = min(parts)
        step, round = parts[first].step, parts[first].round
        metrics = self._judge.evaluate({sender: part.payload for sender, part in parts.items()})
        judgement = m.Judgement(round, 0, 1, len(self._workload.eval_data), metrics)
        self._judged = m.Judged(sender=self.address, step=step, judgement=judgement)
        return [*self.retry(), *(Send(sender, m.SendNext(step=step)) for sender in sorted(parts))]

    def settle(self) -> Effects:
        """Return nothing: an evaluator leaves nothing for later."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: it has promised nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begin anew."""

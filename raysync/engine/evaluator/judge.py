"""Models put together from what workers or stages send, and judged: the mean of the replicas where each has its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from raysync.address import Address
from raysync.compress import verbatim
from raysync.engine.server.averaged import minus
from raysync.engine.training.replica import Replica
from raysync.spec import JobSpec
from raysync.tasks.workload import Workload


class Judge(Protocol):
    """Judges models."""

    @property
    def size_bytes(self) -> int:
        """What parameters and float buffers take."""

    def evaluate(self, payloads: Mapping[Address, bytes]) -> dict[str, float]:
        """Return the metrics of the model that these payloads make."""


def judge_of(spec: JobSpec, workload: Workload, device: str) -> Judge:
    """Return who judges the models of a job."""
    return WholeJudge(spec, workload, device) if spec.scale.stages == 1 else StagesJudge(spec, workload, device)


class WholeJudge:
    """Judges models that every replica has whole."""

    def __init__(self, spec: JobSpec, workload: Workload, device: str) -> None:
        self._replica = Replica(spec, workload, device, is_trained=False)

    @property
    def size_bytes(self) -> int:
        """What parameters and float buffers take."""
        return 4 * (len(self._replica.flat) + len(self._replica.extras()))

    def evaluate(self, payloads: Mapping[Address, bytes]) -> dict[str, float]:
        """Return the metrics of the replicas' mean."""
        vector, size = _mean(payloads), len(self._replica.flat)
        return self._replica.evaluate(vector[:size], vector[size:])


class StagesJudge:
    """Judges models whose stages are in different places."""

    def __init__(self, spec: JobSpec, workload: Workload, device: str) -> None:
        from raysync.engine.stage.showing import Whole

        self._whole, self._stages = Whole(spec, workload, device), spec.scale.stages

    @property
    def size_bytes(self) -> int:
        """What parameters and float buffers take."""
        return self._whole.size_bytes

    def evaluate(self, payloads: Mapping[Address, bytes]) -> dict[str, float]:
        """Return the metrics of the model made of every stage's mean over its replicas."""
        by_stage: list[dict[Address, bytes]] = [{} for _ in range(self._stages)]
        for sender, payload in payloads.items():
            by_stage[sender.stage][sender] = payload
        self._whole.load_vectors([_mean(found) for found in by_stage])
        return self._whole.evaluate()


def _mean(payloads: Mapping[Address, bytes]) -> Tensor:
    """Return the mean of vectors; what is equal in all of them stays as it is, bit for bit."""
    first, *others = [verbatim.decode(payloads[sender]) for sender in sorted(payloads)]
    mean = first.clone()
    for other in others:
        mean.add_(minus(other, first), alpha=1 / len(payloads))
    return mean

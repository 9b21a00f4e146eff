"""The worker core: computes a step at a time on its replica of the whole model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from raysync.address import Address
from raysync.engine.effects import Effects
from raysync.engine.member import Member, Phase
from raysync.engine.ports import Measured, Probe, no_probe, nothing_measured
from raysync.engine.training.replica import Replica
from raysync.engine.worker.judging import Judging
from raysync.errors import ProtocolError
from raysync.spec import JobSpec
from raysync.tasks.workload import Workload

T = TypeVar("T")


class Worker(Member):
    """One data-parallel worker."""

    def __init__(
        self,
        address: Address,
        spec: JobSpec,
        workload: Workload,
        *,
        device: str = "cpu",
        probe: Probe = no_probe,
        measured: Measured = nothing_measured,
        replica: Replica | None = None,
    ) -> None:
        super().__init__(address, spec, replica or Replica(spec, workload, device), workload, probe, measured)
        self._judging = Judging(address, spec, self.trainer, self.shared)

    @property
    def judging(self) -> Judging:
        """Its share in evaluations."""
        return self._judging

    def compute(self) -> Effects:
        """Compute one step on this worker's next batch and report it."""
        if self.phase is not Phase.READY:
            raise ProtocolError(str(self.address), f"compute() in phase {self.phase.value}")
        view = self._data_views.of(self.step)
        computed = self.trainer.compute(view, self.step, self._lr(), len(self.view.members))
        return self._computed_step(computed, view)

    def _showing_since(self, step: int) -> None:
        self._judging.showing_since(step)

    def show_model(self, look: Callable[[dict[str, Any]], T]) -> T:
        """Let `look` see the state_dict of the model that is evaluated, and return what it returns."""
        return self.trainer.show_model(look)

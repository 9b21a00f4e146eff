"""The evaluator actor: judges models beside the training."""

from __future__ import annotations

import ray

from actors.shell.core_actor import CONCURRENCY, CoreActor
from actors.shell.devices import use_cpus
from actors.shell.seat import Seat
from raysync.address import Address


@ray.remote(concurrency_groups=CONCURRENCY)
class EvaluatorActor(CoreActor):
    """One evaluator, on the CPU."""

    def seats(self) -> dict[Address, Seat]:
        """Build the evaluator, with as many threads as a worker has CPUs."""
        from raysync.engine.evaluator import Evaluator
        from raysync.tasks.workload import Workload

        self._facts = {"device": "cpu", "torch_threads": use_cpus(self.assignment.cpus)}
        return {self.name: Seat(Evaluator(self.name, self.spec, Workload(self.spec.task.build())))}

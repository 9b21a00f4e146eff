"""What raysync must come to: bulk-synchronous training of several replicas in a plain torch program."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from raysync.address import worker as worker_at
from raysync.control.view import View
from raysync.data import Sampler
from raysync.engine.seeds import derive
from raysync.engine.training.replica import seed_generators
from raysync.spec import Data
from raysync.tasks.base import Task
from raysync.tasks.workload import Workload

WORKERS, STEPS, BATCH, SEED, LR, MOMENTUM = 2, 25, 8, 5, 0.05, 0.9


class Batches:
    """Which samples a worker reads at a step, and the random numbers it then draws."""

    def __init__(self, task: Task) -> None:
        self.workload = Workload(task)
        self._sampler = Sampler(Data(batch_size=BATCH), self.workload.num_samples, SEED)

    def loss(self, model: torch.nn.Module, worker: int, step: int) -> Tensor:
        """Return a worker's loss at a step."""
        seed_generators(derive(SEED, "step", worker, step), "cpu")
        indices = self._sampler.batch(View(1, tuple(map(worker_at, range(WORKERS)))), worker_at(worker), step)
        return self.workload.task.loss(model, self.workload.batch(indices))


def train(task: Task) -> dict[str, Tensor]:
    """Return the model after all steps: mean gradient, one SGD step each, float buffers averaged."""
    batches = Batches(task)
    seed_generators(SEED, "cpu")
    first = task.model()
    models = [first, *(copy.deepcopy(first) for _ in range(WORKERS - 1))]
    optimizers = [torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM) for model in models]
    for step in range(STEPS):
        for worker, model in enumerate(models):
            model.zero_grad()
            batches.loss(model, worker, step).backward()
        for group in zip(*(model.parameters() for model in models), strict=True):
            gradients = [p.grad.to_dense() for p in group if p.grad is not None]
            for parameter in group if gradients else ():
                parameter.grad = torch.stack(gradients).mean(dim=0)
        for optimizer in optimizers:
            optimizer.step()
        for buffers in zip(*(model.buffers() for model in models), strict=True):
            if buffers[0].is_floating_point() and not all(torch.equal(buffers[0], other) for other in buffers):
                mean = torch.stack(buffers).mean(dim=0)
                for buffer in buffers:
                    buffer.copy_(mean)
    return dict(models[0].state_dict())


def distance(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Return the largest difference between two models, infinite if they are not of one kind."""
    if found.keys() != expected.keys():
        return float("inf")
    apart = [torch.where(found[k] == v, 0.0, (found[k].double() - v.double()).abs()) for k, v in expected.items()]
    return max(float(gap.max()) for gap in apart)

"""One rank of a plain torch program that trains `tests.bench.images`: what people have without us.

    python -m tests.bench.torch_peer RANK HOST:PORT FILE

FILE says how: `ddp`, `ddp fp16`, `periodic` (every rank for itself, parameters averaged every so many steps) or
`post-local` (DDP for the first steps, then the same). The first rank prints when the target was reached.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from tests.bench.images import Images, pause

WARMUP = 20
"""Steps of DDP before post-local SGD averages parameters."""


def main() -> None:
    """Train to the target, or so many steps."""
    rank, where, path = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    how = json.loads(Path(path).read_text())
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://{where}", rank=rank, world_size=2, timeout=timedelta(seconds=300)
    )
    task = Images(how["folder"])
    torch.manual_seed(how["seed"])
    model = task.model()
    train, held = (_tensors(data) for data in (task.train_data(), task.eval_data()))
    trained, step_with = _made(model, how)
    generator = torch.Generator().manual_seed(1000 * how["seed"] + rank)
    started_s, evaluating_s, curve = 0.0, 0.0, []
    first = WARMUP if how["method"] == "post-local" else 0
    dist.barrier()
    for step in range(how["steps"]):
        chosen = 2 * torch.randint(len(train[0]) // 2, (how["batch"],), generator=generator) + rank
        model.zero_grad()
        pause()
        cross_entropy(trained(train[0][chosen]), train[1][chosen]).backward()  # type: ignore[no-untyped-call]
        step_with()
        if step == 0:
            started_s = time.perf_counter()
        if how["every"] and step >= first and (step - first) % how["every"] == 0:
            begun_s = time.perf_counter()
            accuracy = _evaluate(model, held, rank)
            evaluating_s += time.perf_counter() - begun_s
            curve.append((step, round(accuracy, 4), time.perf_counter() - started_s))
            if accuracy >= how["target"]:
                break
    if rank == 0:
        took_s = time.perf_counter() - started_s
        step_s = (took_s - evaluating_s) / max(1, step)
        print(
            json.dumps(
                {"curve": curve, "took_s": took_s, "steps": step, "step_s": step_s, "evaluating_s": evaluating_s}
            )
        )
    dist.barrier()
    dist.destroy_process_group()


def _tensors(data: Any) -> tuple[Tensor, Tensor]:
    images, labels = data.tensors
    return images, labels


def _made(model: nn.Module, how: dict[str, Any]) -> tuple[Callable[..., Any], Callable[[], Any]]:
    """Return what computes the forward pass, and what steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=how["lr"], momentum=how["momentum"])
    if how["method"] == "periodic":
        averager = PeriodicModelAverager(period=how["interval"], warmup_steps=0)

        def step_and_average() -> None:
            optimizer.step()
            averager.average_parameters(model.parameters())

        return model, step_and_average
    wrapped = DistributedDataParallel(model)
    if how["method"] == "ddp fp16":
        wrapped.register_comm_hook(None, fp16_compress_hook)  # type: ignore[no-untyped-call]
    if how["method"] == "post-local":
        state = PostLocalSGDState(None, None, WARMUP, post_local_gradient_allreduce=False)  # type: ignore[no-untyped-call]
        wrapped.register_comm_hook(state, post_localSGD_hook)  # type: ignore[no-untyped-call]
        averager = PeriodicModelAverager(period=how["interval"], warmup_steps=WARMUP)
        return wrapped, PostLocalSGDOptimizer(optim=optimizer, averager=averager).step
    return wrapped, optimizer.step


def _evaluate(model: nn.Module, held: tuple[Tensor, Tensor], rank: int) -> float:
    """Return the accuracy over all, half of it judged by each rank."""
    images, labels = held[0][rank::2], held[1][rank::2]
    with torch.no_grad():
        right = (model(images).argmax(dim=1) == labels).sum().double()
    found = torch.stack([right, torch.tensor(float(len(labels)), dtype=torch.float64)])
    dist.all_reduce(found)
    return float(found[0] / found[1])


if __name__ == "__main__":
    main()

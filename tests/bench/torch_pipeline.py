"""One rank of a plain torch program: `torch.distributed.pipelining`'s 1F1B on gloo, over the stages raysync would make.

    python -m tests.bench.torch_pipeline RANK HOST:PORT FILE

FILE holds the job as raysync would take it; the last rank prints how many samples a second it trained.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from raysync.engine.stage.cutting import cut_model
from raysync.engine.stage.feed import loss_of, model_input
from raysync.spec import parse_spec
from raysync.tasks.workload import Workload

_WARM = 0.3
"""The share of the steps that is not timed."""


def main() -> None:
    """Train."""
    rank, where, path = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    spec = parse_spec(json.loads(Path(path).read_text()))
    stages, schedule = spec.scale.stages, spec.schedule
    assert schedule is not None
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://{where}", rank=rank, world_size=stages, timeout=timedelta(seconds=120)
    )
    workload = Workload(spec.task.build())
    module = cut_model(workload, stages, spec.seed).modules[rank]
    size, parts = spec.data.batch_size, schedule.microbatches

    def loss(output: torch.Tensor, windows: torch.Tensor) -> Any:
        return loss_of(workload, (windows,), output)

    stage = PipelineStage(module, rank, stages, torch.device("cpu"))
    line = Schedule1F1B(stage, n_microbatches=parts, loss_fn=loss)
    optimizer = torch.optim.AdamW(module.parameters(), lr=spec.optimizer.lr)
    steps, started_s = spec.budget.steps, 0.0
    generator = np.random.default_rng(spec.seed)
    for step in range(steps):
        if step == int(_WARM * steps):
            started_s = time.perf_counter()
        batch = workload.batch(generator.integers(0, workload.num_samples, size))
        optimizer.zero_grad()
        if rank == 0:
            line.step(model_input(workload, batch))
        elif rank == stages - 1:
            line.step(target=batch[0])
        else:
            line.step()
        optimizer.step()
    dist.barrier()
    if rank == stages - 1:
        took_s = time.perf_counter() - started_s
        print(json.dumps({"samples_per_s": (steps - int(_WARM * steps)) * size / took_s}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

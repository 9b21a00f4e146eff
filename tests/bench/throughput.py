"""What training pays for raysync: SelSync that never fires beside a bare loop, by `fit` and by `attach`, with one worker
and with two; and BSP beside DDP on gloo.

As many processes of one thread each on both sides; rates are taken in one run and their ratios are what counts. On two
cores one worker has a core for itself; two share theirs with the coordinator, the controller and Ray.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from raysync.spec import JobSpec, parse_spec
from tests.bench.local_ray import local_ray, run, steps_per_s
from tests.bench.record import compare

WORKERS = 2
REPEATS = 3
GOALS = {1: 0.97, 2: 0.95}
NEVER = {"kind": "selsync", "delta": 1e30, "warmup_steps": 0, "max_interval": 10**6, "overlap": True}
SMALL = {"kind": "char_lm", "width": 80, "depth": 3, "heads": 4, "context": 64, "corpus_bytes": 300_000}
LARGE = {"kind": "char_lm", "width": 256, "depth": 6, "heads": 8, "context": 64, "corpus_bytes": 300_000}


def job(task: dict[str, Any], batch_size: int, steps: int, **fields: Any) -> JobSpec:
    """Return a job of the bench."""
    scale = {"workers": WORKERS, **fields.pop("scale", {})}
    common = {"task": task, "data": {"batch_size": batch_size}, "budget": {"steps": steps}, "eval": {"every": 10**9}}
    return parse_spec(
        {**common, "optimizer": {"kind": "sgd", "lr": 0.01}, "scale": scale, "transport": "direct", **fields}
    )


def main() -> int:
    """Measure and print."""
    bsp = job(LARGE, 4, 40, strategy={"kind": "bsp"}, scale={"shards": WORKERS, "shards_in": "workers"})
    elements = sum(parameter.numel() for parameter in bsp.task.build().model().parameters())
    with local_ray() as storage:
        for workers in (1, WORKERS):
            local = job(SMALL, 6, 250, strategy=NEVER, scale={"workers": workers})
            for how in ("fit", "attach"):
                ours, bare = _interleaved(local, "bare", storage) if how == "fit" else attached_rates(workers, storage)
                label = f"local step by {how}, workers: {workers}; ms, the bare loop's"
                compare(f"throughput.{how}", label, ours=1e3 / ours, rival=1e3 / bare, goal=GOALS[workers])
        ours, ddp = _interleaved(bsp, "ddp", storage)
        label = "bsp step: ms, DDP's"
        compare("throughput.bsp", label, ours=1e3 / ours, rival=1e3 / ddp, goal=0.9, parameters=elements)
    return 0


def _interleaved(spec: JobSpec, how: str, storage: str) -> tuple[float, float]:
    """Return the median rates of ours and the other side, measured in turn: the machine drifts."""
    pairs = [(steps_per_s(run(spec, storage)), plain(spec, how)) for _ in range(REPEATS)]
    return statistics.median(ours for ours, _ in pairs), statistics.median(other for _, other in pairs)


def attached_rates(workers: int, storage: str) -> tuple[float, float]:
    """Return the median rates of an attached loop and of a bare one, which take turns in the same processes."""
    import json

    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    TorchTrainer(
        _loop,
        train_loop_config={"out": storage},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=False),
        run_config=RunConfig(storage_path=storage, name=f"attached-{workers}"),
    ).fit()
    rates = [json.loads(Path(storage, f"{rank}.json").read_text()) for rank in range(workers)]
    ours, bare = (statistics.mean(rate[how] for rate in rates) for how in ("ours", "bare"))
    return ours, bare


def _loop(config: dict[str, Any]) -> None:
    import json

    from ray.train import get_context

    from actors import attach
    from raysync.tasks.workload import Workload

    torch.set_num_threads(1)
    rank = get_context().get_world_rank()
    workload = Workload(job(SMALL, 6, 250, strategy=NEVER).task.build())
    generator = torch.Generator().manual_seed(rank)

    def rate(model: Any, optimizer: torch.optim.Optimizer, steps: int) -> float:
        started_s = time.perf_counter()
        for _ in range(steps):
            indices = torch.randint(workload.num_samples, (6,), generator=generator).numpy()
            optimizer.zero_grad()
            workload.task.loss(model, workload.batch(indices)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return steps / (time.perf_counter() - started_s)

    sides: dict[str, Any] = {}
    for how in ("bare", "ours"):
        model = workload.task.model()
        sides[how] = model, torch.optim.SGD(model.parameters(), lr=0.01)
    with attach(*sides["ours"], strategy=NEVER):
        rates: dict[str, list[float]] = {how: [] for how in sides}
        for turn in range(2 * REPEATS + 1):
            for how, side in sides.items():
                found = rate(*side, steps=50)
                rates[how] += [found] if turn else []
    Path(config["out"], f"{rank}.json").write_text(json.dumps({how: statistics.median(rates[how]) for how in rates}))


def plain(spec: JobSpec, how: str) -> float:
    """Return steps per second of the same training without raysync: each process for itself, or under DDP."""
    import torch.multiprocessing as mp

    context = mp.get_context("spawn")
    answers = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(target=_plain_worker, args=(rank, spec.model_dump_json(), how, folder, answers))
            for rank in range(spec.scale.workers)
        ]
        for process in processes:
            process.start()
        rates = [answers.get() for _ in processes]
        for process in processes:
            process.join()
    return statistics.mean(rates)


def _plain_worker(rank: int, text: str, how: str, folder: str, answers: Any) -> None:
    import torch.distributed as dist

    from raysync.tasks.workload import Workload

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    spec = JobSpec.model_validate_json(text)
    workload = Workload(spec.task.build())
    model: Any = workload.task.model()
    dist.init_process_group(
        "gloo", init_method=f"file://{Path(folder) / 'store'}", rank=rank, world_size=spec.scale.workers
    )
    if how == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=spec.optimizer.lr)
    generator = torch.Generator().manual_seed(rank)
    steps = spec.budget.steps
    dist.barrier()
    for step in range(steps):
        if step == int(0.3 * steps):
            started_s = time.perf_counter()
        indices = torch.randint(workload.num_samples, (spec.data.batch_size,), generator=generator).numpy()
        optimizer.zero_grad()
        workload.task.loss(model, workload.batch(indices)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    answers.put((steps - 1 - int(0.3 * steps)) / (time.perf_counter() - started_s))
    dist.barrier()
    dist.destroy_process_group()

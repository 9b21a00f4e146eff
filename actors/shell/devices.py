"""What a process may compute on: threads and devices, as Ray gave them."""

from __future__ import annotations

from raysync.errors import TaskError
from raysync.spec import JobSpec


def use_cpus(cpus: float) -> int:
    """Let torch have as many threads as there are CPUs, one at least; return how many."""
    import torch

    threads = max(1, int(cpus))
    torch.set_num_threads(threads)
    return threads


def device_of(spec: JobSpec) -> str:
    """Return the device a worker trains on; raise if the job asks for one that is not here."""
    import torch

    if spec.scale.gpus_per_worker == 0:
        return "cpu"
    if not torch.cuda.is_available():
        raise TaskError(
            spec.task.kind,
            f"scale.gpus_per_worker={spec.scale.gpus_per_worker} but this node's torch finds no CUDA; install a CUDA "
            "build of torch there, or set it to 0",
        )
    return "cuda"

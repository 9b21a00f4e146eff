"""A Ray of the benchmarks' own, and a folder for its jobs."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator
from typing import Any

from raysync.spec import JobSpec


@contextlib.contextmanager
def local_ray(num_cpus: int = 8) -> Iterator[str]:
    """Start a local Ray; yield a folder."""
    import ray

    ray.init(
        address="local", num_cpus=num_cpus, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR
    )
    try:
        with tempfile.TemporaryDirectory() as storage:
            yield storage
    finally:
        ray.shutdown()


def run(spec: JobSpec, storage: str) -> Any:
    """Run a job; raise if it fails."""
    from actors import fit

    result = fit(spec, storage_path=storage)
    if result.error is not None:
        raise result.error
    return result


def steps_per_s(result: Any, skip: float = 0.3) -> float:
    """Return the rate of steps, without the first share of them."""
    times = {
        record.step: record.time_s
        for record in result.records()
        if record.kind == "metrics" and "train/loss" in record.data
    }
    steps = sorted(times)
    first, last = steps[int(skip * len(steps))], steps[-1]
    return (last - first) / (times[last] - times[first])

"""What training pays for checkpoints: the same job with one every twenty rounds and without, in turn in one run."""

from __future__ import annotations

import statistics
from typing import Any

import torch

from actors.storage.folder import Folder, completed, read_manifest
from raysync.spec import JobSpec
from tests.bench.local_ray import local_ray, run
from tests.bench.record import record
from tests.bench.throughput import LARGE, WORKERS, job

EVERY_ROUNDS = 20
ROUNDS = 60
PAIRS = 3
BAR = 1.03


def main() -> int:
    """Measure and print."""
    strategy = {"kind": "bsp"}
    scale = {"shards": WORKERS, "shards_in": "workers"}
    plain = job(LARGE, 16, ROUNDS, strategy=strategy, scale=scale)
    often = job(LARGE, 16, ROUNDS, strategy=strategy, scale=scale, checkpoint={"every_rounds": EVERY_ROUNDS, "keep": 1})
    elements = sum(parameter.numel() for parameter in plain.task.build().model().parameters())
    with local_ray() as storage:
        pairs = [(_measured(often, storage), _measured(plain, storage)) for _ in range(PAIRS)]
    ratios = [ours["round_s"] / bare["round_s"] for ours, bare in pairs]
    record(
        "checkpoints",
        parameters=elements,
        workers=WORKERS,
        every_rounds=EVERY_ROUNDS,
        megabytes=pairs[0][0]["megabytes"],
        taken=pairs[0][0]["taken"],
        written_s=statistics.median(ours["written_s"] for ours, _ in pairs),
        with_ms=1e3 * statistics.median(ours["round_s"] for ours, _ in pairs),
        without_ms=1e3 * statistics.median(bare["round_s"] for _, bare in pairs),
        ratios=[round(ratio, 4) for ratio in ratios],
        ratio=statistics.median(ratios),
        bar=BAR,
    )
    return 0


def _measured(spec: JobSpec, storage: str) -> dict[str, Any]:
    """Return the time of a round between the first checkpoint that all have cut for and the last round, and what was
    written meanwhile.
    """
    result = run(spec, storage)
    records = result.records()
    times = {record.step: record.time_s for record in records if record.kind == "decision"}
    first, last = EVERY_ROUNDS // 2, ROUNDS - EVERY_ROUNDS // 2  # as many rounds as checkpoints pay for
    taken = [record for record in records if record.kind == "checkpoint" and record.step > first]
    folder = Folder(result.path)
    found = {"round_s": (times[last] - times[first]) / (last - first), "taken": len(taken), "megabytes": 0.0}
    written = [record.time_s - times[record.step - 1] for record in taken if record.step - 1 in times]
    found["written_s"] = statistics.median(written) if written else 0.0
    for name in completed(folder)[-1:]:
        found["megabytes"] = sum(read_manifest(folder.at(name))["files"].values()) / 1e6
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    raise SystemExit(main())

"""Peak memory of every stage of a pipeline against the formula (`raysync/engine/stage/memory.py`), measured on Ray.

    python -m tests.bench stage_memory

Measured is what a stage's process has taken at most after a dozen steps, beyond the same stage of a model with next to no
weights. At the end of a job the first stage puts the whole model together to save it, which is not in this figure.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from actors import submit
from raysync.spec import parse_spec
from tests.bench.local_ray import local_ray
from tests.bench.record import record

STAGES = 4
STEPS = 12
_BOUND_S = 120.0
LARGE = {"kind": "char_lm", "width": 512, "depth": 8, "heads": 8, "context": 64, "corpus_bytes": 50_000}
TINY = {**LARGE, "width": 8, "depth": 4, "heads": 2, "context": 8}
CASES: dict[str, dict[str, Any]] = {
    "gpipe bsp": {"schedule": {"kind": "gpipe"}, "strategy": {"kind": "bsp"}},
    "async sparse": {"schedule": {"kind": "async_one_f_one_b"}, "strategy": {"kind": "async_sparse"}},
    "async sparse, passes kept": {
        "schedule": {"kind": "async_one_f_one_b", "recompute": False},
        "strategy": {"kind": "async_sparse"},
    },
}


def main() -> int:
    """Measure and print a line for each case and stage."""
    with local_ray(4) as storage:
        for name, fields in CASES.items():
            tiny, _ = _peaks(TINY, fields, storage)
            large, formula = _peaks(LARGE, fields, storage)
            for stage in range(STAGES):
                measured = large[stage] - tiny[stage]
                record(
                    "stage_memory",
                    case=name,
                    stage=stage,
                    measured_mb=measured / 1e6,
                    formula_mb=formula[stage] / 1e6,
                    ratio=measured / formula[stage],
                )
    return 0


def _peaks(task: dict[str, Any], fields: dict[str, Any], storage: str) -> tuple[list[int], list[float]]:
    """Return the peak memory of each stage's process, and what the formula says."""
    spec = parse_spec(
        {
            "task": task,
            "optimizer": {"kind": "adamw"},
            "scale": {"workers": 1, "stages": STAGES},
            "data": {"batch_size": 8},
            "budget": {"steps": 100_000},
            "eval": {"every": 10**9},
            **fields,
        }
    )
    job = submit(spec, storage_path=storage)
    deadline_s = time.monotonic() + _BOUND_S
    while (status := job.status()).step < STEPS or "pipeline/memory_bytes/0" not in status.metrics:
        if time.monotonic() > deadline_s or status.state not in ("PENDING", "STARTING", "RUNNING"):
            raise SystemExit(f"the job is {status.state} at step {status.step}: {status.reason}")
        time.sleep(0.2)
    peaks = [_peak_bytes(status.actors[f"stage/{stage}/0"].pid) for stage in range(STAGES)]
    job.stop(checkpoint=False)
    job.wait(_BOUND_S)
    return peaks, [status.metrics[f"pipeline/memory_bytes/{stage}"] for stage in range(STAGES)]


def _peak_bytes(pid: int | None) -> int:
    """Return the most memory a process of this machine has had."""
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))


if __name__ == "__main__":
    sys.exit(main())

"""`make bench`: every benchmark, one after the other; or those named: `python -m tests.bench triggers`. Each prints JSON
lines; at the end comes one table of all that has a rival: ours, the rival, the ratio, the goal.
"""

from __future__ import annotations

import importlib
import sys

import torch

from tests.bench.record import table

BENCHES = (
    "codecs",
    "placement",
    "triggers",
    "defaults",
    "landing",
    "scaling",
    "models",
    "rounds",
    "wire",
    "throughput",
    "startup",
    "memory",
    "checkpoints",
    "mesh",
    "pipelines",
    "stage_memory",
    "study",
    "service",
    "stalling",
    "live_jobs",
    "schema",
    "page",
)


def main() -> int:
    """Run the named benchmarks, or all."""
    torch.set_num_threads(1)
    if {"-h", "--help"} & {*sys.argv[1:]}:
        print(f"{__doc__}\nThere are: {', '.join(BENCHES)}.")
        return 0
    names = [argument for argument in sys.argv[1:] if not argument.startswith("-")] or list(BENCHES)
    unknown = [name for name in names if name not in BENCHES]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHES)}")
        return 2
    worst = max(importlib.import_module(f"tests.bench.{name}").main() for name in names)
    print(table(), flush=True)
    return worst


if __name__ == "__main__":
    sys.exit(main())

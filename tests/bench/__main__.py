"""`make bench`: every benchmark, one after the other; or those named: `python -m tests.bench triggers`."""

from __future__ import annotations

import importlib
import sys

import torch

BENCHES = ("placement", "triggers")


def main() -> int:
    """Run the named benchmarks, or all."""
    torch.set_num_threads(1)
    names = sys.argv[1:] or list(BENCHES)
    unknown = [name for name in names if name not in BENCHES]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHES)}")
        return 2
    for name in names:
        importlib.import_module(f"tests.bench.{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main())

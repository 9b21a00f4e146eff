"""Benchmark results as JSON lines: what was measured, with what, on what."""

from __future__ import annotations

import json
import os
import platform
from typing import Any

import numpy
import torch

import raysync


def record(bench: str, **facts: Any) -> None:
    """Print one result."""
    where = {"raysync": raysync.__version__, "torch": torch.__version__, "numpy": numpy.__version__}
    where |= {"python": platform.python_version(), "machine": platform.machine(), "cores": os.cpu_count()}
    rounded = {name: round(value, 5) if isinstance(value, float) else value for name, value in facts.items()}
    print(json.dumps({"bench": bench, **rounded, **where}), flush=True)

"""Benchmark results as JSON lines: what was measured, with what, on what."""

from __future__ import annotations

import json
import os
import platform
from typing import Any

import numpy
import torch

import raysync

_COMPARED: list[dict[str, Any]] = []


def compare(bench: str, what: str, *, ours: float | None, rival: float | None, goal: float, **facts: Any) -> None:
    """Print one result with a rival, and keep it for the table. The ratio is the rival's over ours, both as costs: what
    is above the goal has reached it.
    """
    ratio = rival / ours if ours and rival else None
    _COMPARED.append({"what": what, "ours": ours, "rival": rival, "ratio": ratio, "goal": goal})
    record(bench, what=what, ours=ours, rival=rival, ratio=ratio, goal=goal, **facts)


def table() -> str:
    """Return all that was compared with a rival, as a table."""
    lines = ["| what | ours | rival | rival / ours | goal |", "|---|---|---|---|---|"]
    for row in _COMPARED:
        ours, rival, ratio = (_short(row[name]) for name in ("ours", "rival", "ratio"))
        missed = "" if row["ratio"] is not None and row["ratio"] >= row["goal"] else " (missed)"
        lines.append(f"| {row['what']} | {ours} | {rival} | {ratio} | {_short(row['goal'])}{missed} |")
    return "\n".join(lines) if _COMPARED else ""


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def record(bench: str, **facts: Any) -> None:
    """Print one result."""
    where = {"raysync": raysync.__version__, "torch": torch.__version__, "numpy": numpy.__version__}
    where |= {"python": platform.python_version(), "machine": platform.machine(), "cores": os.cpu_count()}
    rounded = {name: round(value, 5) if isinstance(value, float) else value for name, value in facts.items()}
    print(json.dumps({"bench": bench, **rounded, **where}), flush=True)

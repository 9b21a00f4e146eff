"""Metrics in few characters, as the registry has them: for the progress line and the table of jobs."""

from __future__ import annotations

from collections.abc import Mapping

from raysync.metrics import TOLD, Metric, Short

SHORT: tuple[tuple[Metric, Short], ...] = tuple((metric, metric.short) for metric in TOLD if metric.short is not None)
LABELS = tuple(dict.fromkeys(short.label for _, short in SHORT if short.label))
"""Those that have a column in a table."""


def summary(metrics: Mapping[str, float | None]) -> str:
    """Return the metrics a person looks at first, in one line."""
    return ", ".join(f"{label} {text}" if label in LABELS else text for label, text in shorts(metrics).items())


def shorts(metrics: Mapping[str, float | None]) -> dict[str, str]:
    """Return the metrics a person looks at first by label, or name if they need none; equal labels are added up."""
    sums: dict[str, float] = {}
    found: dict[str, str] = {}
    for metric, short in SHORT:
        value, label = metrics.get(metric.name), short.label or metric.name
        if value is not None:
            sums[label] = sums.get(label, 0.0) + short.scale * value
            found[label] = size(sums[label]) if metric.unit == "bytes" else short.form.format(sums[label])
    return found


def size(count: float) -> str:
    """Return a number of bytes as people write it."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"

"""A pipeline's schedule as it really ran, as a picture: time from left to right, a row for every stage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from raysync.pipeline.base import Kind
from raysync.pipeline.trace import Traced

_COLOURS = {Kind.FORWARD: "#4878a8", Kind.BACKWARD: "#d08a3e", Kind.STEP: "#5a9a68"}
_SHOWN_STEPS = 12
"""So many steps fit a picture; the JSON has all of them."""


def draw(spans: Sequence[Traced], path: Path) -> bool:
    """Draw steps from the middle of a run; return whether matplotlib was there to do it."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    steps = sorted({span.step for span in spans})
    first = steps[max(0, len(steps) // 2 - _SHOWN_STEPS // 2)]
    shown = [span for span in spans if first <= span.step < first + _SHOWN_STEPS]
    begin_s = min(span.start_s for span in shown)
    rows = sorted({(span.who.index, span.who.stage) for span in shown})
    figure, axes = pyplot.subplots(figsize=(14, 1.2 + 0.55 * len(rows)))
    for span in shown:
        row, length_ms = rows.index((span.who.index, span.who.stage)), 1000 * (span.end_s - span.start_s)
        start_ms = 1000 * (span.start_s - begin_s)
        axes.broken_barh([(start_ms, length_ms)], (row + 0.1, 0.8), color=_COLOURS[span.kind], edgecolor="white")
        if span.kind is not Kind.STEP:
            label = f"{span.step}" if span.microbatch == 0 else f"{span.step}.{span.microbatch}"
            axes.text(start_ms + length_ms / 2, row + 0.5, label, ha="center", va="center", fontsize=6, clip_on=True)
    axes.set_yticks([row + 0.5 for row in range(len(rows))], [f"pipeline {d}, stage {s}" for d, s in rows])
    axes.invert_yaxis()
    axes.set_xlabel(f"ms, from step {first} on; numbers are steps and microbatches")
    names = [Patch(color=colour, label=kind.value) for kind, colour in _COLOURS.items()]
    axes.legend(handles=names, loc="lower right", bbox_to_anchor=(1, 1), ncol=3, frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return True

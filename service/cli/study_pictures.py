"""A study in four pictures: its front, every trial as it went, how the front grew, and which values lead where."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raysync.study import State, StudySpec, Trial, outcome
from raysync.study.outcome import hypervolumes

_COLOURS = {
    State.REACHED: "#3d7d4f",
    State.MISSED: "#b0563f",
    State.STOPPED: "#999999",
    State.FAILED: "#222222",
    State.RUNNING: "#4878a8",
}


def draw_study(spec: StudySpec, trials: Sequence[Trial], folder: Path) -> list[Path]:
    """Draw what there is to draw; return the pictures, none where matplotlib is missing."""
    try:
        import matplotlib
    except ImportError:
        return []
    matplotlib.use("agg")
    from matplotlib import pyplot

    made = []
    for name, draw in (("front", _front), ("trials", _trials), ("hypervolume", _hypervolume), ("parallel", _parallel)):
        figure, axes = pyplot.subplots(figsize=(8, 5))
        draw(axes, spec, trials)
        figure.suptitle(f"{spec.name}: {_TITLES[name]}", fontsize=11)
        figure.tight_layout()
        path = folder / f"{name}.png"
        figure.savefig(path, dpi=120)
        pyplot.close(figure)
        made.append(path)
    return made


_TITLES = {
    "front": "what no other trial beats",
    "trials": "every trial as it went",
    "hypervolume": "how much the front covers",
    "parallel": "which values lead where",
}


def _front(axes: Any, spec: StudySpec, trials: Sequence[Trial]) -> None:
    found = outcome(spec, trials)
    others = [t for t in trials if t.state is State.REACHED and t not in found.front]
    for group, colour, label in ((others, "#bbbbbb", "beaten"), (found.front, _COLOURS[State.REACHED], "front")):
        if group:
            axes.scatter([t.cost for t in group], [t.quality for t in group], color=colour, label=label, zorder=3)
    axes.plot([t.cost for t in found.front], [t.quality for t in found.front], color=_COLOURS[State.REACHED], lw=1)
    named: dict[int, list[str]] = {}
    for pick in found.picks:
        named.setdefault(pick.trial.number, []).append(pick.name)
    for trial in found.front:
        if trial.number in named:
            words = f"{', '.join(named[trial.number])} (trial {trial.number})"
            axes.annotate(words, (trial.cost, trial.quality), textcoords="offset points", xytext=(6, -12), fontsize=8)
    axes.axhline(spec.floor.bound, color=_COLOURS[State.MISSED], lw=1, ls="--", label="floor")
    if any(t.cost for t in (*others, *found.front)):
        axes.set_xscale("log")
    axes.set_xlabel(f"{spec.objective.minimise} until the floor ({spec.objective.unit})")
    axes.set_ylabel(spec.floor.metric)
    axes.legend(fontsize=8)


def _trials(axes: Any, spec: StudySpec, trials: Sequence[Trial]) -> None:
    shown: set[State] = set()
    for trial in trials:
        seen = [one for one in trial.seen if one.bytes > 0]
        label = trial.state.value.lower() if trial.state not in shown else None
        shown.add(trial.state)
        axes.plot(
            [one.bytes for one in seen],
            [one.quality for one in seen],
            color=_COLOURS[trial.state],
            lw=1,
            alpha=0.8,
            label=label,
        )
    axes.axhline(spec.floor.bound, color="black", lw=1, ls="--", label="floor")
    if any(one.bytes > 0 for trial in trials for one in trial.seen):
        axes.set_xscale("log")
    axes.set_xlabel("bytes sent")
    axes.set_ylabel(spec.floor.metric)
    axes.legend(fontsize=8)


def _hypervolume(axes: Any, spec: StudySpec, trials: Sequence[Trial]) -> None:
    numbers = sorted(trial.number for trial in trials)
    axes.step(numbers, hypervolumes(spec, trials), where="post", color=_COLOURS[State.REACHED])
    axes.set_xlabel("trial")
    axes.set_ylabel("area dominated (log cost x quality)")


def _parallel(axes: Any, spec: StudySpec, trials: Sequence[Trial]) -> None:
    """A line for every searched trial through the places of its values, those it has, to where it ended."""
    paths = [*spec.space]
    ends = [trial.quality for trial in trials if trial.point and trial.quality is not None]
    low, high = (min(ends), max(ends)) if ends else (0.0, 1.0)
    for trial in trials:
        if not trial.point:
            continue
        places = {i: _place(spec, path, trial.point[path]) for i, path in enumerate(paths) if path in trial.point}
        if trial.quality is not None:
            places[len(paths)] = (trial.quality - low) / max(high - low, 1e-12)
        is_good = trial.state is State.REACHED
        axes.plot(
            [*places],
            [*places.values()],
            color=_COLOURS[trial.state],
            lw=2 if is_good else 0.8,
            alpha=0.9 if is_good else 0.5,
            marker="o",
            ms=3,
        )
    axes.set_xticks(range(len(paths) + 1), [*paths, spec.floor.metric], rotation=20, ha="right", fontsize=8)
    axes.set_xlim(-0.2, len(paths) + 0.4)
    axes.set_ylim(-0.1, 1.1)
    for height, value in ((0.0, low), (1.0, high)):
        axes.text(len(paths) + 0.03, height, f"{value:.3g}", fontsize=7, va="center", color="#555555")
    axes.set_yticks([])
    for index, path in enumerate(paths):
        dimension = spec.space[path]
        words = dimension.choice or (dimension.low, dimension.high)
        for number, word in enumerate(words):
            height = number / max(1, len(words) - 1)
            axes.text(index + 0.03, height, f"{word}", fontsize=7, va="center", color="#555555")


def _place(spec: StudySpec, path: str, value: Any) -> float:
    """Return where a value lies between the ends of its axis."""
    import math

    dimension = spec.space[path]
    if dimension.choice is not None:
        return dimension.choice.index(value) / max(1, len(dimension.choice) - 1)
    low, high = float(dimension.low or 0.0), float(dimension.high or 1.0)
    if dimension.log:
        return (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))
    return (float(value) - low) / (high - low)

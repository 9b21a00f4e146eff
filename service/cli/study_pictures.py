"""A study in four pictures: its front, every trial as it went, how the front grew, and which values lead where."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raysync.study import Kind, Outcome, State, StudySpec, Trial, outcome
from raysync.study.outcome import hypervolumes
from service.cli.study_scale import Scale

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


_COSTS = {
    "bytes": "payload sent until the floor was reached (bytes)",
    "wall_s": "time until the floor was reached (s)",
    "predicted_s": "predicted time until the floor is reached (s)",
}
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
    costs = [t.cost for t in (*others, *found.front) if t.cost is not None]
    where = "post" if spec.floor.is_upward else "pre"
    colour = _COLOURS[State.REACHED]
    axes.step([t.cost for t in found.front], [t.quality for t in found.front], color=colour, lw=1, where=where)
    if costs and min(costs) > 0 and max(costs) > 5 * min(costs):
        axes.set_xscale("log")
    for trial, words in _named(found, trials):
        is_right = trial.cost == max(costs) and len(costs) > 1
        axes.annotate(
            words,
            (trial.cost, trial.quality),
            textcoords="offset points",
            xytext=(-6 if is_right else 6, -12),
            ha="right" if is_right else "left",
            fontsize=8,
        )
    axes.axhline(spec.floor.bound, color=_COLOURS[State.MISSED], lw=1, ls="--", label="floor")
    axes.margins(x=0.08, y=0.08)
    axes.set_xlabel(_COSTS[spec.objective.minimise])
    axes.set_ylabel(spec.floor.metric)
    axes.legend(fontsize=8)


def _named(found: Outcome, trials: Sequence[Trial]) -> list[tuple[Trial, str]]:
    """Return what to write beside the picks, the user's own job and the dense one."""
    named: dict[int, list[str]] = {}
    for pick in found.picks:
        named.setdefault(pick.trial.number, []).append(pick.name)
    for trial in trials:
        if trial.state is State.REACHED and trial.kind is not Kind.SEARCHED:
            named.setdefault(trial.number, []).append({Kind.OWN: "your own", Kind.DENSE: "dense"}[trial.kind])
    known = {trial.number: trial for trial in trials}
    return [(known[number], f"{', '.join(words)} (trial {number})") for number, words in named.items()]


def _trials(axes: Any, spec: StudySpec, trials: Sequence[Trial]) -> None:
    shown: set[State] = set()
    for trial in trials:
        seen = [one for one in trial.seen if one.bytes > 0]
        if not seen:
            continue
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
    axes.set_xlabel("payload sent (bytes)")
    axes.set_ylabel(spec.floor.metric)
    axes.legend(fontsize=8)


def _hypervolume(axes: Any, spec: StudySpec, trials: Sequence[Trial]) -> None:
    from matplotlib.ticker import MaxNLocator

    numbers = sorted(trial.number for trial in trials)
    axes.step(numbers, hypervolumes(spec, trials), where="post", color=_COLOURS[State.REACHED])
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("trial")
    axes.set_ylabel(f"area dominated (log cost x {spec.floor.metric})")


def _parallel(axes: Any, spec: StudySpec, trials: Sequence[Trial]) -> None:
    """A line for every searched trial through the places of its values, those it has, to where it ended: how good, and
    at what cost if it reached the floor.
    """
    scales = {path: Scale.of(spec.space[path]) for path in spec.space}
    searched = [trial for trial in trials if trial.point]
    scales[spec.floor.metric] = Scale.around([t.quality for t in searched if t.quality is not None])
    scales[f"{spec.objective.minimise} to the floor"] = Scale.around([t.cost for t in searched if t.cost], is_log=True)
    shown: set[State] = set()
    for trial in sorted(searched, key=lambda trial: trial.state is State.REACHED):
        values = [*(trial.point.get(path) for path in spec.space), trial.quality, trial.cost]
        there = [
            (i, scale.place(v))
            for i, (scale, v) in enumerate(zip(scales.values(), values, strict=True))
            if v is not None
        ]
        is_good = trial.state is State.REACHED
        style = {"lw": 1.8, "alpha": 0.9} if is_good else {"lw": 0.8, "alpha": 0.5}
        label = trial.state.value.lower() if trial.state not in shown else None
        shown.add(trial.state)
        axes.plot(*zip(*there, strict=True), color=_COLOURS[trial.state], marker="o", ms=3, label=label, **style)
    box = {"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none", "alpha": 0.85}
    for index, scale in enumerate(scales.values()):
        axes.axvline(index, color="#dddddd", lw=1, zorder=0)
        for height, words in scale.ticks:
            axes.text(index + 0.05, height, words, fontsize=7, va="center", color="#333333", bbox=box, zorder=4)
    axes.set_xticks(range(len(scales)), [*scales], rotation=20, ha="right", fontsize=8)
    axes.set_xlim(-0.2, len(scales) - 0.4)
    axes.set_ylim(-0.1, 1.1)
    axes.set_yticks([])
    if shown:
        axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))

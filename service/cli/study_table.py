"""A study in the terminal: a table of its trials that is drawn anew with every change."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from raysync.study import Kind, State, StudySpec, Trial, outcome
from service.cli.short import size

_SHOWN = 30
"""So many rows fit a screen: those that run, and the last that ended."""
_STYLES = {State.REACHED: "green", State.MISSED: "yellow", State.STOPPED: "dim", State.FAILED: "red"}


class StudyTable:
    """Shows a study while it runs; where nobody looks at a terminal it prints a line for every trial that ends."""

    def __init__(self, id: str, spec: StudySpec, console: Console | None = None) -> None:
        self._id, self._spec, self._console = id, spec, console or Console(stderr=True)
        self._trials: dict[int, Trial] = {}
        self._told: set[int] = set()
        self._steps = spec.job({}).budget.steps
        self._lock = threading.Lock()
        self._live = Live(console=self._console, refresh_per_second=4, transient=False, get_renderable=self._draw)

    @property
    def is_live(self) -> bool:
        """Whether it is drawn anew, as in a terminal."""
        return self._console.is_terminal

    def say(self, words: str) -> None:
        """Print a line."""
        self._console.print(words, soft_wrap=True, highlight=False, markup=False)

    def __enter__(self) -> StudyTable:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def show(self, trial: Trial) -> None:
        """Take in a trial as it is now."""
        with self._lock:
            self._trials[trial.number] = trial
            is_news = trial.state.is_over and trial.number not in self._told
            if trial.state.is_over:
                self._told.add(trial.number)
        if is_news and not self._console.is_terminal:
            cells = self._cells(trial)
            self.say(f"trial {cells[0]} {cells[2]}: {cells[1]}: {cells[6]}")

    def _draw(self) -> RenderableType:
        with self._lock:
            trials = [self._trials[number] for number in sorted(self._trials)]
        over = [trial for trial in trials if trial.state.is_over]
        running = [trial for trial in trials if not trial.state.is_over]
        table = Table(box=None, pad_edge=False, expand=True)
        for name, options in _COLUMNS.items():
            table.add_column(name, **options)
        for trial in (*over[-max(1, _SHOWN - len(running)) :], *running):
            table.add_row(*map(Text, self._cells(trial)), style=_STYLES.get(trial.state, ""))
        head = Text(f"{self._id}: {len(over)} of {self._spec.trials} trials over, {len(running)} running", style="bold")
        foot = Text(outcome(self._spec, over).sentence if over else "", style="bold")
        return Group(head, table, foot)

    def _cells(self, trial: Trial) -> list[str]:
        last = trial.seen[-1] if trial.seen else None
        return [
            str(trial.number),
            told_point(trial),
            trial.state.value,
            f"{last.step if last else 0}/{self._steps}",
            f"{last.quality:.4g}" if last else "",
            size(last.bytes) if last else "",
            trial.reason.splitlines()[0] if trial.reason else "",
        ]


_COLUMNS: dict[str, dict[str, Any]] = {
    "trial": {"justify": "right", "no_wrap": True},
    "point": {"ratio": 3, "overflow": "ellipsis", "no_wrap": True},
    "state": {"no_wrap": True},
    "step": {"justify": "right", "no_wrap": True},
    "quality": {"justify": "right", "no_wrap": True},
    "sent": {"justify": "right", "no_wrap": True},
    "why": {"ratio": 2, "overflow": "ellipsis", "no_wrap": True},
}


def told_point(trial: Trial) -> str:
    """Return a trial's point in few words: the last name of each field, with the one before where two are the same."""
    if trial.kind is not Kind.SEARCHED:
        return {Kind.OWN: "your own job", Kind.DENSE: "dense: everything, every step"}[trial.kind]
    return ", ".join(f"{name}={_short(value)}" for name, value in short_names(trial.point).items())


def short_names(point: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a point under names that are as short as can be told apart."""
    lasts = [path.rpartition(".")[2] for path in point]
    return {
        last if lasts.count(last) == 1 else ".".join(path.split(".")[-2:]): value
        for (path, value), last in zip(point.items(), lasts, strict=True)
    }


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)

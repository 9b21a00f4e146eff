"""A job's progress in the terminal: one live line made of its events, wherever they come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

_WIDE = 110
"""From so many columns on there is room for a bar."""


class ProgressLine:
    """Step, loss, accuracy, LSSR, bytes sent, samples per second, time left; states are printed above it."""

    def __init__(self, name: str, steps: int, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}", table_column=Column(max_width=24, no_wrap=True, overflow="ellipsis")),
            *([BarColumn(10)] if self._console.width >= _WIDE else []),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[note]}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            transient=False,
            expand=True,  # so that it is the note that gives way where there is little room
        )
        self._task = self._progress.add_task(name, total=steps, note="waiting")
        self._latest: dict[str, float] = {}
        self._steps = steps

    def __enter__(self) -> ProgressLine:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def show(self, kind: str, step: int, data: Mapping[str, Any]) -> None:
        """Take in an event."""
        if kind == "metrics":
            self._latest.update(data)
            self._progress.update(self._task, completed=min(step + 1, self._steps), note=summary(self._latest))
        elif kind == "reason":
            self._progress.update(self._task, note=escape(headline(data["reason"])))
        elif kind == "state":
            reason = escape(headline(data["reason"]))
            self._console.print(f"[dim]{data['state']:<10}[/dim] {reason}", highlight=False)
            if not self._latest:
                self._progress.update(self._task, note=reason)
        elif kind == "knobs":
            turned = ", ".join(f"{name} {data['before'][name]} -> {value}" for name, value in data["after"].items())
            self._console.print(f"[dim]knobs     [/dim] {turned}, from step {step} on", highlight=False)
        elif kind == "view" and (data["joined"] or data["left"] or data["died"]):
            self._console.print(f"[dim]workers   [/dim] {_change(data)} (from step {step} on)", highlight=False)


def summary(metrics: Mapping[str, float]) -> str:
    """Return the metrics a person looks at first, in one line."""
    parts = []
    if "train/loss" in metrics:
        parts.append(f"loss {metrics['train/loss']:.3f}")
    if "eval/accuracy" in metrics:
        parts.append(f"accuracy {100 * metrics['eval/accuracy']:.1f} %")
    if "sync/lssr" in metrics:
        parts.append(f"LSSR {metrics['sync/lssr']:.2f}")
    if "comm/bytes_up" in metrics:
        parts.append(f"sent {size(metrics['comm/bytes_up'] + metrics.get('comm/bytes_down', 0.0))}")
    if "train/samples_per_s" in metrics:
        parts.append(f"{metrics['train/samples_per_s']:,.0f} samples/s")
    return ", ".join(parts)


def headline(reason: str) -> str:
    """Return a reason in one line: of a traceback, who raised it and its last line."""
    who, found, rest = reason.strip().partition("Traceback (most recent call last)")
    if found:
        return f"{' '.join(who.split())} {rest.strip().splitlines()[-1].strip()}".strip()
    return who.splitlines()[0] if who else ""


def size(count: float) -> str:
    """Return a number of bytes as people write it."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def _change(view: Mapping[str, Any]) -> str:
    words = [f"{', '.join(map(str, view[how]))} {how}" for how in ("joined", "left", "died") if view[how]]
    return f"{'; '.join(words)}: now {', '.join(map(str, view['members']))}"

"""A job's progress in the terminal: one live line made of its events, wherever they come from."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from raysync.control.states import JobState
from raysync.events import (
    AnyEvent,
    Divergence,
    KnobChange,
    Metrics,
    NewReason,
    Notice,
    StateChange,
    StuckStep,
    ViewChange,
)
from raysync.rate import Rate
from raysync.reason import headline
from service.cli.short import summary

_BROKEN_S = 1.0
"""So soon a connection that broke off is worth a word: most are back before."""
_QUIET_S = 15.0
"""A stream that stands tells at least that every ten seconds."""
_WIDE = 110
"""From so many columns on there is room for a bar."""


class ProgressLine:
    """Step, loss, accuracy, LSSR, bytes sent, samples per second, time left; states are printed above it."""

    def __init__(
        self, name: str, steps: int, console: Console | None = None, now_s: Callable[[], float] | None = None
    ) -> None:
        self._console = console or Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}", table_column=Column(max_width=24, no_wrap=True, overflow="ellipsis")),
            *([BarColumn(10)] if self._console.width >= _WIDE else []),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            _Note(self, table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
            TimeElapsedColumn(table_column=Column(no_wrap=True, min_width=7)),
            TextColumn("{task.fields[left]}", table_column=Column(no_wrap=True, min_width=12)),
            console=self._console,
            get_time=now_s,
            transient=False,
            expand=True,  # so that it is the note that gives way where there is little room
        )
        self._task = self._progress.add_task(name, total=steps, note="waiting", left="")
        self._latest: dict[str, float | None] = {}
        self._steps, self._step = steps, -1
        self._rate = Rate()
        self._heard_s: float | None = None
        """When the teller of the events was last heard; None where that is not watched for."""
        self._has_contact = True

    def __enter__(self) -> ProgressLine:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def contact(self, is_there: bool) -> None:
        """Note that the teller of the events has been heard, or has broken off."""
        if is_there:
            self._heard_s = self._progress.get_time()
        self._has_contact = is_there

    @property
    def silence(self) -> str | None:
        """What to say while nothing comes although something should; None while all is well."""
        if self._heard_s is None:
            return None
        silent_s = self._progress.get_time() - self._heard_s
        if silent_s < (_BROKEN_S if not self._has_contact else _QUIET_S):
            return None
        return f"the service does not answer for {silent_s:.0f} s, trying again"

    def show(self, body: AnyEvent | None, step: int, time_s: float = 0.0) -> None:
        """Take in an event of which this is known; `time_s` is the job's own time."""
        match body:
            case Metrics(values):
                self._latest.update(values)
                self._advance(step, time_s)
            case NewReason(reason=reason):
                self._progress.update(self._task, note=escape(headline(reason)))
            case StateChange(state=state, reason=reason):
                self._enter(state, escape(headline(reason)))
            case KnobChange(before=before, after=after):
                turned = ", ".join(f"{name} {before.get(name)} -> {value}" for name, value in after.items())
                self._say("knobs", f"{turned}, from step {step} on")
            case Notice(text):
                self._say("notice", escape(text))
            case Divergence(who, problem):
                self._say("skipped", f"a batch of {escape(who)} at step {step}: {escape(problem)}")
            case StuckStep(who=who, step=stuck, for_s=for_s, where=where):
                self._say("stuck", f"{escape(who)} computes step {stuck} for {for_s:.0f} s: {escape(headline(where))}")
            case ViewChange() as view if view.joined or view.left or view.died:
                self._say("workers", f"{_change(view)} (from step {step} on)")

    def _say(self, what: str, text: str) -> None:
        self._console.print(f"[dim]{what:<10}[/dim] {text}", highlight=False)

    def _enter(self, state: JobState, reason: str) -> None:
        self._say(state.value, reason)
        if not self._latest:
            self._progress.update(self._task, note=reason)
        if state is not JobState.RUNNING:
            self._progress.update(self._task, left="")

    def _advance(self, step: int, time_s: float) -> None:
        """Move to a step: the time left follows from the steps of the last seconds, by the job's clock, not from how
        fast the events came.
        """
        if step > self._step:
            per_s = self._rate.add(step - self._step, time_s)
            self._step = step
            left = "" if not per_s else f"left {_hours((self._steps - step - 1) / per_s)}"
            self._progress.update(self._task, left=left)
        done = min(self._step + 1, self._steps)
        self._progress.update(self._task, completed=done, note=escape(summary(self._latest)))


class _Note(ProgressColumn):
    """What is to be said of the job; or, drawn anew with the line, that its service is silent."""

    max_refresh = None

    def __init__(self, line: ProgressLine, table_column: Column) -> None:
        self._line = line
        super().__init__(table_column)

    def render(self, task: Task) -> Text:
        return Text.from_markup(self._line.silence or task.fields["note"])


def _hours(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"


def _change(view: ViewChange) -> str:
    moves = {"joined": view.joined, "left": view.left, "died": view.died}
    words = [f"{', '.join(map(str, workers))} {how}" for how, workers in moves.items() if workers]
    return f"{'; '.join(words)}: now {', '.join(map(str, view.members))}"

"""Which point is tried next: first the user's own job, then the dense one, then what a sampler suggests.

Ray Tune asks; the answers are in the study's store before Tune has them, so that nothing is tried twice and nothing is
forgotten when the process dies.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import optuna
from ray.exceptions import RayError
from ray.tune.search import Searcher

from raysync.errors import RaysyncError, SpecError
from raysync.study import Dimension, Kind, Point, State, StudySpec, Trial
from raysync.study.space import draw
from raysync.study.study_spec import OptunaSearch, Population
from tune_configs.book import Book
from tune_configs.here import StaysHere

_NO_COST = 15.0
"""The logarithm of what a trial costs that never reached the floor: more than any that did."""


CANNOT_START = (RaysyncError, RayError, OSError, ValueError)
"""What may keep a job from being started; the trial fails, and the study goes on."""


def told_of(error: Exception) -> str:
    """Return why a job was not started."""
    return str(error.problems[0]) if isinstance(error, SpecError) else f"{type(error).__name__}: {error}"


class StudySearch(StaysHere, Searcher):
    """Hands out the trials of a study, those first that were begun before and not ended."""

    def __init__(
        self, book: Book, begin: Callable[[str, Trial], dict[str, Any]], room: Callable[[], int] = lambda: 64
    ) -> None:
        """Take the book, what starts a trial's job under Tune's id for it and returns all the trial must know, and how
        many trials may run at once now.
        """
        super().__init__()
        self._book, self._begin, self._room = book, begin, room
        self._sampler = _sampler(book)

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        """The study's own specification says all of it."""
        return True

    def suggest(self, trial_id: str) -> Any:
        """Return what the next trial is, or that there is none; None for not yet."""
        while True:
            if self._book.running >= self._room() and not self._book.is_stopping:
                return None
            trial = self._book.next(self._draw)
            if trial is None:
                return Searcher.FINISHED
            self._book.assign(trial_id, trial)
            try:
                return {"trial": self._begin(trial_id, trial)}
            except CANNOT_START as error:  # values that do not go together, for one: a trial all the same, over at once
                self._book.failed(trial, told_of(error))
                self.tell(trial)

    def all_left(self) -> list[Trial]:
        """Return all trials that are left, at once."""
        found: list[Trial] = []
        while (trial := self._book.next(self._draw)) is not None:
            found.append(trial)
        return found

    def _draw(self, number: int) -> tuple[Kind, Point, int | None]:
        spec = self._book.spec
        if number == 0:
            return Kind.OWN, {}, None
        if number == 1 and not isinstance(spec.scheduler, Population):
            return Kind.DENSE, {}, None
        point, asked = self._sampler.ask(number)
        return Kind.SEARCHED, point, asked

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Nothing is learnt yet: Tune says so before the book has heard how the trial ended."""

    def tell(self, trial: Trial) -> None:
        """Let the sampler learn what came of a trial."""
        if trial.asked is not None and trial.state.is_over:
            self._sampler.tell(trial)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Nothing is learnt before the end."""

    def save(self, checkpoint_path: str) -> None:
        """Nothing is kept here: the store has it."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing was kept here."""


class _Random:
    """Draws each point from its number alone: a study that goes on draws the points it would have drawn."""

    def __init__(self, spec: StudySpec) -> None:
        self._spec = spec

    def ask(self, number: int) -> tuple[Point, int | None]:
        generator = np.random.default_rng([self._spec.seed, number])
        return draw(self._spec.space, lambda _, dimension: _drawn(dimension, generator)), None

    def tell(self, trial: Trial) -> None:
        """Learn nothing."""


def _drawn(dimension: Dimension, generator: np.random.Generator) -> Any:
    if dimension.choice is not None:
        return dimension.choice[int(generator.integers(len(dimension.choice)))]
    low, high = float(dimension.low or 0.0), float(dimension.high or 0.0)
    if dimension.whole:
        return int(generator.integers(int(low), int(high) + 1))
    value = (
        math.exp(generator.uniform(math.log(low), math.log(high))) if dimension.log else generator.uniform(low, high)
    )
    return float(value)


class _Optuna:
    """Optuna's sampler for two objectives: the cost's logarithm down, the quality up. What it learns is in the study's
    database; a trial that was begun before the process died is told under the number it was asked with.
    """

    def __init__(self, book: Book, search: OptunaSearch) -> None:
        self._spec = book.spec
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        over = [trial for trial in book.trials.values() if trial.state.is_over and trial.asked is not None]
        known = len(book.trials)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sampler = optuna.samplers.TPESampler(seed=self._spec.seed + known, n_startup_trials=search.startup_trials)
            self._study = optuna.create_study(
                storage=optuna.storages.RDBStorage(f"sqlite:///{book.store.database}"),
                study_name=book.store.id,
                directions=["minimize", "maximize"],
                sampler=sampler,
                load_if_exists=True,
            )
        for trial in over:  # told before, unless whoever ran the study died in between
            self.tell(trial)

    def ask(self, number: int) -> tuple[Point, int | None]:
        asked = self._study.ask()
        return draw(self._spec.space, lambda path, dimension: _suggested(asked, path, dimension)), asked.number

    def tell(self, trial: Trial) -> None:
        assert trial.asked is not None
        if trial.state is State.FAILED or trial.quality is None:
            self._study.tell(trial.asked, state=optuna.trial.TrialState.FAIL, skip_if_finished=True)
            return
        cost = _NO_COST if trial.cost is None or trial.state is not State.REACHED else math.log10(max(trial.cost, 1e-9))
        quality = trial.quality if self._spec.floor.is_upward else -trial.quality
        self._study.tell(trial.asked, [cost, quality], skip_if_finished=True)


def _suggested(asked: optuna.Trial, path: str, dimension: Dimension) -> Any:
    if dimension.choice is not None:
        numbers = list(range(len(dimension.choice)))
        return dimension.choice[asked.suggest_categorical(path, numbers)]
    low, high = float(dimension.low or 0.0), float(dimension.high or 0.0)
    if dimension.whole:
        return asked.suggest_int(path, int(low), int(high), log=dimension.log)
    return asked.suggest_float(path, low, high, log=dimension.log)


def _sampler(book: Book) -> _Random | _Optuna:
    search = book.spec.search
    return _Optuna(book, search) if isinstance(search, OptunaSearch) else _Random(book.spec)

"""Runs a study: Ray Tune hands out trials, every trial is an ordinary job, and the book keeps what comes of them."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import yaml
from ray import tune
from ray.tune import Callback, Stopper
from ray.tune.execution.placement_groups import PlacementGroupFactory

from raysync.knobs import field_at
from raysync.spec import JobSpec
from raysync.study import Kind, Outcome, StudySpec, Trial, outcome
from raysync.study.ending import ending
from raysync.study.outcome import answer_of, job_of, picked
from raysync.study.study_spec import Population
from tune_configs.book import Book
from tune_configs.here import StaysHere
from tune_configs.job_trial import JobTrial, job_id
from tune_configs.launcher import Launcher
from tune_configs.room import Room
from tune_configs.scheduling import scheduler_of
from tune_configs.search import CANNOT_START, StudySearch, told_of
from tune_configs.store import StudyStore

_RELAY = PlacementGroupFactory([{"node:__internal_head__": 0.001}])
"""What a trial itself takes, since it must take something: it only waits for its job, which may need every CPU."""
_POLL_S = 0.2
_ENDS_S = 60.0
"""So long jobs have to end before the study does."""

logger = logging.getLogger(__name__)


class StudyResult(NamedTuple):
    """What a study came to."""

    state: str
    """SUCCEEDED, STOPPED or FAILED"""
    reason: str
    trials: tuple[Trial, ...]
    outcome: Outcome
    took_s: float
    """In this run of it."""
    concurrency: int
    overhead: float
    """How many times longer this run took than its trials, so many at once, would have taken on their own."""


class Study:
    """One study, run by this process on the Ray it is connected to."""

    def __init__(
        self,
        store: StudyStore,
        *,
        launcher: Launcher,
        on_change: Callable[[Trial], None] | None = None,
    ) -> None:
        self.store, self.spec = store, store.spec()
        self.book = Book(store, self.spec, on_change)
        self._launcher, self._room = launcher, Room(self.spec.job({}), self.spec.max_concurrent)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._enders: list[threading.Thread] = []
        self._search: StudySearch | None = None

    def stop(self) -> None:
        """End the study: Tune begins no more trials and lets go of those that run; `run` ends their jobs."""
        self.book.is_stopping = True

    def run(self) -> StudyResult:
        """Run to the end; the caller holds the store, and may call `stop` from a signal handler or another thread."""
        started_s = time.monotonic()
        known = {trial.number for trial in self.book.trials.values() if trial.state.is_over}
        self._end_all("its study goes on without it")
        self._thread = threading.Thread(target=self._fit, name="tune", daemon=True)
        self._thread.start()
        while self._thread.is_alive():
            self._thread.join(_POLL_S)
        self._end_all("the study is over")
        trials = tuple(self.book.trials[number] for number in sorted(self.book.trials))
        found = outcome(self.spec, trials)
        write_picks(self.store, self.spec, found)
        state, reason = self._state(trials, found)
        took_s = time.monotonic() - started_s
        concurrency = self.spec.trials if self._is_population else self._room.peak
        own_s = sum(trial.took_s for trial in trials if trial.number not in known) / concurrency
        return StudyResult(state, reason, trials, found, took_s, concurrency, took_s / own_s if own_s else 1.0)

    def _state(self, trials: tuple[Trial, ...], found: Outcome) -> tuple[str, str]:
        if self._error is not None:
            return "FAILED", f"{type(self._error).__name__}: {self._error}"
        return ending(self.spec, trials, found, self.book.problem)

    def _fit(self) -> None:
        try:
            with _quiet():
                if self._left > 0:
                    self._tuner().fit()
        except BaseException as error:
            self._error = error

    @property
    def _is_population(self) -> bool:
        return isinstance(self.spec.scheduler, Population)

    @property
    def _left(self) -> int:
        return self.spec.trials - sum(trial.state.is_over for trial in self.book.trials.values())

    def _tuner(self) -> Any:
        known = [trial for trial in self.book.trials.values() if trial.state.is_over]
        self._search, space = StudySearch(self.book, self._begin, self._room.count), {}
        if self._is_population:  # Tune wants no search beside it: all points are drawn now
            space = {"trial": tune.grid_search([self._config(trial) for trial in self._search.all_left()])}
        return tune.Tuner(
            tune.with_resources(JobTrial, _RELAY),
            param_space=space,
            tune_config=tune.TuneConfig(
                search_alg=None if self._is_population else self._search,
                scheduler=scheduler_of(self.spec, known),
                num_samples=1 if self._is_population else self._left,
                max_concurrent_trials=self._left,  # the search holds back what does not fit
                reuse_actors=True,
            ),
            run_config=tune.RunConfig(
                name=f"run-{time.time_ns()}",
                storage_path=str(self.store.folder / "tune"),
                verbose=0,
                stop=_Stopper(self.book),
                callbacks=[_Recorder(self)],
                failure_config=tune.FailureConfig(max_failures=0),
            ),
        )

    def _begin(self, trial_id: str, trial: Trial) -> dict[str, Any]:
        """Start a trial's first job and return all the trial must know; raise if it cannot be started."""
        try:
            self.launch(trial_id, 0)
        except CANNOT_START:
            self._end_jobs(trial, "its trial failed")  # whoever refused it may have begun it all the same
            raise
        return self._config(trial)

    def _config(self, trial: Trial) -> dict[str, Any]:
        is_population = self._is_population
        return {
            "study": self.store.id,
            "number": trial.number,
            "seeds": self.spec.seeds,
            "floor": self.spec.floor.model_dump(),
            "is_baseline": trial.kind is not Kind.SEARCHED and not is_population,
            "asks": is_population,
            "knobs": self._knobs(self._job(trial, 0)) if is_population else {},
        }

    def launch(self, trial_id: str, seed: int) -> None:
        """Start the job of one of a trial's seeds."""
        trial = self.book.of(trial_id)
        job, id = self._job(trial, seed), job_id(self.store.id, trial_id, seed)
        self.book.launched(trial, id)  # before it is: whoever goes on with the study knows what to end
        self._launcher.launch(id, job)

    def launch_or_fail(self, trial_id: str, seed: int) -> None:
        """Start a job; a trial whose job cannot be started has failed."""
        try:
            self.launch(trial_id, seed)
        except CANNOT_START as error:
            self.fail(trial_id, told_of(error))

    def fail(self, trial_id: str, reason: str) -> None:
        """A trial has failed, and its jobs are of no use any more."""
        trial = self.book.of(trial_id)
        if not trial.state.is_over:
            self.book.failed(trial, reason)
            self._end_jobs(trial, "its trial failed")

    def finished(self, id: str) -> None:
        """A job has ended, and all it told has been read."""
        self._launcher.finished(id)

    def waits(self, trial_id: str, id: str, reason: str) -> None:
        """A trial waits for its job: see whether that will ever run."""
        job = job_of(self.spec, self.book.of(trial_id))
        problem = self._launcher.gone(id) or self._room.never(id, job)
        if problem is not None:
            self.fail(trial_id, problem)
        else:
            self.book.waits(trial_id, reason)

    def ended(self, trial_id: str) -> None:
        """Tune has done with a trial, before its time or at its end."""
        trial = self.book.of(trial_id)
        if not trial.state.is_over:
            self.book.stopped(trial_id)
            self._end_jobs(trial, trial.reason)
        if self._search is not None:
            self._search.tell(trial)

    def _end_jobs(self, trial: Trial, reason: str) -> None:
        """Begin to end the jobs of a trial."""
        for id in trial.jobs:
            ender = threading.Thread(target=self._launcher.stop, args=(id, reason), daemon=True)
            self._enders.append(ender)
            ender.start()

    def _end_all(self, reason: str) -> None:
        """End the jobs of all trials that are not over, and wait until they have ended."""
        for trial in self.book.trials.values():
            if not trial.state.is_over:
                self._end_jobs(trial, reason)
        deadline_s = time.monotonic() + _ENDS_S
        for ender in self._enders:
            ender.join(max(0.0, deadline_s - time.monotonic()))
        self._enders = []

    def _knobs(self, job: JobSpec) -> dict[str, Any]:
        """Return the values a job has where the study's space is."""
        return {path: field_at(job, path) for path in self.spec.space}

    def _job(self, trial: Trial, seed: int) -> JobSpec:
        job = job_of(self.spec, trial)
        labels = {**job.labels, "study": self.store.id, "trial": str(trial.number)}
        return job.model_copy(update={"labels": labels, "seed": (job.seed + seed) % 2**32})


class _Stopper(StaysHere, Stopper):
    """Ends the experiment when the study ends."""

    def __init__(self, book: Book) -> None:
        self._book = book

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return self._book.is_stopping or self._book.of(trial_id).state.is_over

    def stop_all(self) -> bool:
        return self._book.is_stopping


class _Recorder(StaysHere, Callback):
    """Writes what Tune tells into the book, and starts and ends jobs as trials need it."""

    def __init__(self, study: Study) -> None:
        self._study, self._book = study, study.book

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
        self._book.started(trial.trial_id, trial.config["trial"]["number"])

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **_: Any) -> None:
        if "waits_for" in result:
            self._study.waits(trial.trial_id, result["waits_for"], result.get("reason", "waits to be started"))
        elif "goes_on" in result:
            self._book.waits(trial.trial_id, result["goes_on"])
        elif "asks_for_seed" in result:
            self._study.launch_or_fail(trial.trial_id, result["asks_for_seed"])
        else:
            self._book.saw(trial.trial_id, result)
            for id in result.get("ended", {}).get("jobs", ()):
                self._study.finished(id)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
        self._study.ended(trial.trial_id)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
        self._book.started(trial.trial_id, trial.config["trial"]["number"])
        self._study.fail(trial.trial_id, _last_line(trial))
        self._study.ended(trial.trial_id)


def _last_line(trial: Any) -> str:
    text = ""
    with contextlib.suppress(Exception):
        text = str(trial.get_error())
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "Ray Tune gave it up without a reason"


def write_picks(store: StudyStore, spec: StudySpec, found: Outcome) -> None:
    """Write each pick as a job's file that can be submitted as it is, and the answer in words."""
    folder = store.folder / "picks"
    folder.mkdir(exist_ok=True)
    for pick in found.picks:
        text = yaml.safe_dump(picked(spec, pick), sort_keys=False)
        comment = f"# {pick.name} of study {store.id}, trial {pick.trial.number}: {pick.sentence}\n"
        (folder / f"{pick.name}.yaml").write_text(comment + text)
    (store.folder / "answer.json").write_text(json.dumps(answer_of(spec, found, store.trials()), indent=1))


@contextlib.contextmanager
def _quiet() -> Any:
    """Keep Tune from writing to the terminal: the study's own table says it all."""
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    os.environ.setdefault("TUNE_DISABLE_STRICT_METRIC_CHECKING", "1")  # baselines are compared at their end only
    names = ("ray.tune", "ray.air", "ray.train")
    levels = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)

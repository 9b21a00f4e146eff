"""What a running study knows of its trials: kept in the store with every change, shown to whoever watches."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

import msgspec

from raysync.study import Kind, Point, Seen, State, StudySpec, Trial
from raysync.study.ending import alike
from raysync.study.outcome import cost_of, job_of
from raysync.study.study_spec import Asha
from tune_configs.store import StudyStore

Draw = Callable[[int], tuple[Kind, Point, int | None]]


class Book:
    """The trials of one study."""

    def __init__(self, store: StudyStore, spec: StudySpec, on_change: Callable[[Trial], None] | None = None) -> None:
        self.store, self.spec = store, spec
        self.trials: dict[int, Trial] = {trial.number: trial for trial in store.trials()}
        self._left = [trial.number for trial in self.trials.values() if not trial.state.is_over]
        """Begun before and not ended: they are begun again."""
        self._numbers: dict[str, int] = {}
        self._began_s: dict[int, float] = {}
        self._on_change = on_change
        self.is_stopping = False
        self.problem: str | None = None
        """Why the study cannot go on."""

    def next(self, draw: Draw) -> Trial | None:
        """Return the next trial to run; None if all have been handed out."""
        if self.is_stopping:
            return None
        if self._left:
            old = self.trials[self._left.pop(0)]
            return self._put(Trial(number=old.number, kind=old.kind, point=old.point, asked=old.asked))
        number = len(self.trials)
        if number >= self.spec.trials:
            return None
        kind, point, asked = draw(number)
        return self._put(Trial(number=number, kind=kind, point=point, asked=asked))

    @property
    def running(self) -> int:
        """How many trials run in Tune now."""
        return sum(not self.trials[number].state.is_over for number in {*self._numbers.values()})

    def assign(self, trial_id: str, trial: Trial) -> None:
        """Remember which trial Tune means by an id."""
        self._numbers[trial_id] = trial.number

    def started(self, trial_id: str, number: int) -> None:
        """Tune has begun a trial; one that takes over another's values has the other's number among them, too, and
        keeps the one it began with.
        """
        self._numbers.setdefault(trial_id, number)

    def of(self, trial_id: str) -> Trial:
        """Return the trial Tune means."""
        return self.trials[self._numbers[trial_id]]

    def waits(self, trial_id: str, reason: str) -> None:
        """A trial's job waits, for room or for something else."""
        trial = self.of(trial_id)
        if trial.reason != reason:
            trial.reason = reason
            self._put(trial)

    def launched(self, trial: Trial, job: str) -> None:
        """A job of a trial was started."""
        trial.jobs = [*trial.jobs, job]
        self._began_s.setdefault(trial.number, time.monotonic())
        self._put(trial)

    def saw(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """Take in an evaluation, or the end."""
        trial = self.of(trial_id)
        if "seen" in result:
            seen = msgspec.convert(result["seen"], Seen)
            trial.seen = [*trial.seen, seen]
            trial.rungs = [rung for rung in self.rungs if rung <= seen.step]
        trial.reason = ""
        trial.knob_version = result.get("knob_version", trial.knob_version)
        trial.turned = result.get("knobs", trial.turned) if trial.knob_version else {}
        trial.pids = result.get("pids", trial.pids)
        if "ended" in result:
            self._end(trial, result["ended"])
        self._put(trial)

    def _end(self, trial: Trial, ended: Mapping[str, Any]) -> None:
        seeds = msgspec.convert(ended["seeds"], list[list[Seen]])
        trial.jobs, trial.reason = list(ended["jobs"]), ended["reason"]
        trial.seen = seeds[0] or trial.seen
        floor = self.spec.floor
        if ended["state"] == "STOPPED":
            trial.state = State.RUNNING if self.is_stopping else State.STOPPED
            return None
        if ended["state"] == "FAILED" or not all(seeds):
            trial.state = State.FAILED
            if ended["state"] != "FAILED":
                told = ", ".join(ended["told"]) or "no evaluation at all"
                trial.reason = f"the job told no {floor.metric}; it told {told}"
            return self._count(trial)
        last = [seen[-1] for seen in seeds]
        trial.quality = (min if floor.is_upward else max)(one.quality for one in last)
        trial.total_bytes = fmean(one.bytes for one in last)
        workers = job_of(self.spec, trial).scale.workers
        costs = [cost_of(self.spec, seen, workers) for seen in seeds]
        if floor.reached(trial.quality) and len(seeds) == self.spec.seeds:
            trial.state, trial.cost = State.REACHED, fmean(cost for cost in costs if cost is not None)
            trial.reason = f"{floor.metric} {trial.quality:.4g}"
        else:
            trial.state = State.MISSED
            trial.reason = f"{floor.metric} {trial.quality:.4g}, the floor is {floor.bound:g}"
        return self._count(trial)

    def stopped(self, trial_id: str) -> Trial:
        """A trial was ended before its time: by the scheduler; or with the study, and then it is begun again when the
        study goes on.
        """
        trial = self.of(trial_id)
        if not trial.state.is_over and not self.is_stopping:
            trial.state = State.STOPPED
            at = f" at step {trial.seen[-1].step}" if trial.seen else ""
            trial.reason = f"{self.spec.scheduler.kind}: others were better{at}"
            trial.quality = trial.seen[-1].quality if trial.seen else None
            self._put(trial)
        return trial

    def failed(self, trial: Trial, reason: str) -> None:
        """A trial could not run."""
        trial.state, trial.reason = State.FAILED, reason
        self._count(trial)
        self._put(trial)

    def _count(self, trial: Trial) -> None:
        """End the study if its trials fail one after the other for the same reason."""
        self.problem = self.problem or alike(self.spec, self.trials.values())
        self.is_stopping = self.is_stopping or self.problem is not None

    @property
    def rungs(self) -> list[int]:
        """The steps at which trials are compared."""
        scheduler, steps = self.spec.scheduler, self.spec.job({}).budget.steps
        if not isinstance(scheduler, Asha):
            return []
        found, rung = [], scheduler.grace_steps
        while rung < steps:
            found.append(rung)
            rung *= scheduler.reduction
        return found

    def _put(self, trial: Trial) -> Trial:
        self.trials[trial.number] = trial
        if trial.state.is_over and not trial.took_s and trial.number in self._began_s:
            trial.took_s = time.monotonic() - self._began_s[trial.number]
        self.store.put(trial)
        if self._on_change is not None:
            self._on_change(trial)
        return trial

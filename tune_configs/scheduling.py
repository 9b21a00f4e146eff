"""Ray Tune's schedulers for a study: which trials are stopped early, or take over the knobs of better ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ray import tune
from ray.tune.schedulers import (
    AsyncHyperBandScheduler,
    FIFOScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    TrialScheduler,
)

from raysync.study import Dimension, StudySpec, Trial
from raysync.study.study_spec import Asha, Floor, Median, Population


def scheduler_of(spec: StudySpec, known: Iterable[Trial]) -> Any:
    """Return the scheduler a study asks for, with what earlier runs of the study have seen."""
    asked = spec.scheduler
    common = {"time_attr": "step", "metric": "promise", "mode": "max" if spec.floor.is_upward else "min"}
    match asked:
        case Asha():
            steps = spec.job({}).budget.steps
            made = AsyncHyperBandScheduler(
                **common,
                max_t=max(steps - 1, asked.grace_steps),  # at its end a trial is judged by what it came to
                grace_period=asked.grace_steps,
                reduction_factor=asked.reduction,
                stop_last_trials=False,
            )
            return _refilled(made, spec.floor, known)
        case Median():
            made = MedianStoppingRule(
                **common, grace_period=asked.grace_steps, min_samples_required=asked.min_trials, min_time_slice=math.inf
            )  # without end: a trial is stopped or goes on, and is never put aside
            return _refilled(made, spec.floor, known)
        case Population():
            return PopulationBasedTraining(
                **common | {"metric": "quality"},
                perturbation_interval=asked.every_steps,
                hyperparam_mutations={"trial": {"knobs": {path: _drawn(found) for path, found in spec.space.items()}}},
                quantile_fraction=asked.quantile,
                custom_explore_fn=_within(spec),
                log_config=False,
                require_attrs=False,
            )
        case _:
            return FIFOScheduler()


def _refilled(scheduler: Any, floor: Floor, known: Iterable[Trial]) -> TrialScheduler:
    """Let a scheduler see what it would have seen had it been there from the start: Tune keeps none of that."""
    for trial in known:
        stand_in = _StandIn(f"known-{trial.number}")
        scheduler.on_trial_add(None, stand_in)
        told = [{"step": seen.step, "promise": floor.promise(seen.quality)} for seen in trial.seen]
        for result in told:
            scheduler.on_trial_result(None, stand_in, result)
        if told:
            scheduler.on_trial_complete(None, stand_in, told[-1])
    return scheduler


class _StandIn(NamedTuple):
    """A trial that Tune does not know."""

    trial_id: str


def _within(spec: StudySpec) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return what keeps knobs between their ends: Tune multiplies them and looks at none."""

    def clamp(config: dict[str, Any]) -> dict[str, Any]:
        knobs = config["trial"]["knobs"]
        for path, dimension in spec.space.items():
            if dimension.low is not None and dimension.high is not None:
                value = min(max(knobs[path], dimension.low), dimension.high)
                knobs[path] = round(value) if dimension.whole else value
        return config

    return clamp


def _drawn(dimension: Dimension) -> Any:
    """Return a dimension as Tune has it; a plain list is ordered, so that a neighbour is a small change."""
    if dimension.choice is not None:
        return list(dimension.choice)
    low, high = float(dimension.low or 0.0), float(dimension.high or 0.0)
    if dimension.whole:
        return tune.randint(int(low), int(high) + 1)
    return tune.loguniform(low, high) if dimension.log else tune.uniform(low, high)

"""How a study ends: whether its trials fail for one and the same reason, and what that makes of the study."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from raysync.study.outcome import Outcome
from raysync.study.study_spec import StudySpec
from raysync.study.trial import State, Trial

_CHANGING = re.compile(r"\S*\d\S*")
"""Words with a digit: steps, process ids, workers, folders differ from trial to trial where the reason is the same."""


def alike(spec: StudySpec, trials: Iterable[Trial]) -> str | None:
    """Return why a study should end: the trials that ended last, as many as its bound, all failed for one reason."""
    over = sorted((trial for trial in trials if trial.state.is_over), key=lambda trial: trial.number)
    last = over[-spec.max_failures :]
    if len(last) < spec.max_failures or any(trial.state is not State.FAILED for trial in last):
        return None
    if len({_CHANGING.sub("#", _first_line(trial.reason)) for trial in last}) > 1:
        return None
    return f"{len(last)} trials in a row failed: {_first_line(last[-1].reason)}"


def ending(spec: StudySpec, trials: Sequence[Trial], found: Outcome, problem: str | None) -> tuple[str, str]:
    """Return the final state of a study, and why: SUCCEEDED even if no trial reached the floor, which is an answer, but
    not if every trial failed, which is none.
    """
    if problem is not None:
        return "FAILED", problem
    left = spec.trials - sum(trial.state.is_over for trial in trials)
    if left > 0:
        return "STOPPED", f"{left} of {spec.trials} trials are left; {found.sentence}"
    if all(trial.state is State.FAILED for trial in trials):
        reasons = dict.fromkeys(_first_line(trial.reason) for trial in trials)
        return "FAILED", f"all {len(trials)} trials failed: {'; '.join([*reasons][:3])}"
    return "SUCCEEDED", found.sentence


def _first_line(text: str) -> str:
    return text.splitlines()[0] if text else ""

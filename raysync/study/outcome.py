"""What a study has come to: its front, three picks of it, and the sentence that says what they are worth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from raysync.spec import JobSpec, as_written
from raysync.study.front import Scored, front, hypervolume, knee
from raysync.study.study_spec import StudySpec
from raysync.study.trial import Kind, Seen, State, Trial

_WORTH_SAYING = 1.5
"""So many times fewer bytes are a saving."""


class Pick(NamedTuple):
    """A trial worth taking, and why."""

    name: str
    """smallest, knee or best"""
    trial: Trial
    sentence: str


class Outcome(NamedTuple):
    """The answer of a study, so far."""

    front: tuple[Trial, ...]
    """Cheapest first."""
    picks: tuple[Pick, ...]
    sentence: str


def outcome(spec: StudySpec, trials: Sequence[Trial]) -> Outcome:
    """Return what the trials of a study come to; those that were stopped early, failed or missed the floor count for
    nothing, however little they sent.
    """
    by_number = {trial.number: trial for trial in trials}
    best = front(scored(spec, trials))
    on_front = tuple(by_number[one.number] for one in best)
    dense = next((trial for trial in trials if trial.kind is Kind.DENSE and trial.state is State.REACHED), None)
    picks: tuple[Pick, ...] = ()
    if best:
        chosen = {"smallest": best[0], "knee": knee(best), "best": best[-1]}
        picks = tuple(
            Pick(name, by_number[one.number], worth(spec, by_number[one.number], dense)) for name, one in chosen.items()
        )
    return Outcome(on_front, picks, _sentence(spec, trials, picks))


def scored(spec: StudySpec, trials: Sequence[Trial]) -> list[Scored]:
    """Return the trials that reached the floor as points."""
    sign = 1.0 if spec.floor.is_upward else -1.0
    return [
        Scored(trial.number, trial.cost, sign * trial.quality)
        for trial in trials
        if trial.state is State.REACHED and trial.cost is not None and trial.quality is not None
    ]


def cost_of(spec: StudySpec, seen: Sequence[Seen], workers: int) -> float | None:
    """Return what it took so many workers until the floor was first reached; None if it never was."""
    first = next((one for one in seen if spec.floor.reached(one.quality)), None)
    if first is None:
        return None
    match spec.objective.minimise:
        case "bytes":
            return first.bytes
        case "wall_s":
            return first.time_s
        case "predicted_s":
            line_s = 8 * first.bytes / workers / (1e6 * (spec.objective.at_mbit or 1.0))
            return (first.step + 1) * first.compute_s + line_s


def worth(spec: StudySpec, trial: Trial, dense: Trial | None) -> str:
    """Return what a trial is worth beside the dense one."""
    assert trial.quality is not None
    reached = f"{spec.floor.metric} {trial.quality:.4g}"
    if dense is None or dense.quality is None:
        return f"{reached}; the dense job has no figure to compare with"
    compared = "as dense" if trial.quality == dense.quality else f"dense {dense.quality:.4g}"
    if trial is dense:
        return f"{reached}: the dense job itself"
    saved = ratio(dense.total_bytes, trial.total_bytes)
    words = f"{reached} ({compared})"
    if saved is not None:
        words += f" with {saved:,.0f} x fewer bytes" if saved >= _WORTH_SAYING else " without fewer bytes to speak of"
    if trial.turned:
        words += f" (its knobs were turned {trial.knob_version} times; the file has their last values)"
    if spec.objective.minimise == "bytes":
        return words
    faster = ratio(dense.cost, trial.cost)
    return f"{words}, the floor {faster:.1f} x sooner" if faster else words


def ratio(one: float | None, other: float | None) -> float | None:
    """Return how many times the one is the other."""
    return one / other if one and other else None


def hypervolumes(spec: StudySpec, trials: Sequence[Trial]) -> list[float]:
    """Return how much is dominated after each trial, in the order of their numbers; the reference is the costliest that
    reached the floor, and the floor.
    """
    points = scored(spec, trials)
    if not points:
        return [0.0] * len(trials)
    worst_cost = max(1e-9, *(point.cost for point in points)) * 1.01
    floor = spec.floor.bound if spec.floor.is_upward else -spec.floor.bound
    worst_quality = min(floor, *(point.quality for point in points))
    numbers = sorted(trial.number for trial in trials)
    return [hypervolume([p for p in points if p.number <= number], worst_cost, worst_quality) for number in numbers]


def job_of(spec: StudySpec, trial: Trial) -> JobSpec:
    """Return the job of a trial, with the values its knobs had at the end if they were turned."""
    return spec.dense if trial.kind is Kind.DENSE else spec.job({**trial.point, **trial.turned})


def picked(spec: StudySpec, pick: Pick) -> dict[str, Any]:
    """Return the job of a pick, as a file would have it."""
    written: dict[str, Any] = as_written(job_of(spec, pick.trial))
    return written


def answer_of(spec: StudySpec, found: Outcome, trials: Sequence[Trial]) -> dict[str, Any]:
    """Return what a study came to as plain data: the sentence, the front, the picks with their jobs, how it grew."""
    return {
        "sentence": found.sentence,
        "front": [trial.number for trial in found.front],
        "picks": {
            pick.name: {"trial": pick.trial.number, "why": pick.sentence, "spec": picked(spec, pick)}
            for pick in found.picks
        },
        "hypervolume": hypervolumes(spec, trials),
    }


def _sentence(spec: StudySpec, trials: Sequence[Trial], picks: Sequence[Pick]) -> str:
    over = [trial for trial in trials if trial.state.is_over]
    counts = {
        "missed the floor": sum(trial.state is State.MISSED for trial in over),
        "stopped early": sum(trial.state is State.STOPPED for trial in over),
        "failed": sum(trial.state is State.FAILED for trial in over),
    }
    told = [f"{count} {words}" for words, count in counts.items() if count]
    of_all = f"of {len(over)} trials " + (", ".join(told) if told else "all reached the floor")
    if not picks:
        bound = f"{spec.floor.metric} {'>=' if spec.floor.is_upward else '<='} {spec.floor.bound:g}"
        return f"no trial reached {bound}; {of_all}"
    return f"{picks[0].sentence}; {of_all}"

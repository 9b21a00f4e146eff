"""What the command line changes of a study: the job it searches around, single fields, how many trials."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raysync.errors import FieldProblem, SpecError
from raysync.spec import as_written, read_spec
from raysync.study import Dimension, StudySpec, parse_study
from raysync.study.space import with_point
from raysync.study.study_spec import kind_at

_MAY_CHANGE = ("trials", "max_concurrent", "max_failures")
_SPACE = "space."


def changed(
    spec: StudySpec, changes: Mapping[str, Any], trials: int | None = None, job: Path | None = None
) -> StudySpec:
    """Return a study with other fields: those of `space` by the paths they are there under."""
    data = as_written(spec)
    if job is not None:
        data["base"] = as_written(read_spec(job))
    for path, value in changes.items():
        if path.startswith(_SPACE):
            data["space"] = _with_dimension(data["space"], path.removeprefix(_SPACE), value)
        else:
            data = with_point(data, {path: value}, lambda path: kind_at(spec, path))
    return parse_study({**data, "trials": trials} if trials is not None else data)


def _with_dimension(space: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return a space with another dimension, or another field of one: `optimizer.lr.low` is `low` of `optimizer.lr`."""
    name, _, field = path.rpartition(".")
    if path in space or field not in Dimension.model_fields:
        return {**space, path: value}
    other = ("low", "high", "log", "whole") if field == "choice" else ("choice",)
    kept = {key: found for key, found in space.get(name, {}).items() if key not in other}
    return {**space, name: {**kept, field: value}}


def continued(
    spec: StudySpec, known: int, changes: Mapping[str, Any], trials: tuple[int, bool] | None, job: Path | None = None
) -> StudySpec:
    """Return a study as it goes on after so many trials: what they were judged by stays."""
    others = [path for path in changes if path not in _MAY_CHANGE] + (["base"] if job is not None else [])
    if others:
        remedy = f"a study that was begun keeps it; only {', '.join(_MAY_CHANGE)} may change: begin another"
        raise SpecError((FieldProblem(others[0], changes.get(others[0], job), remedy),), "the study")
    count = None if trials is None else trials[0] + (max(known, spec.trials) if trials[1] else 0)
    if count is not None and count < known:
        raise SpecError((FieldProblem("--trials", count, f"{known} have been begun; give more, or +N"),), "the study")
    return changed(spec, changes, count)

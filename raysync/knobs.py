"""Knobs: the fields of a job that may turn while it runs. Turning one makes a new valid job, or is refused.

A knob is a field of the job specification; a job has the knob if it has the field, and the field's own checks judge
the value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from raysync.errors import KnobConflict, KnobError, SpecError
from raysync.spec import JobSpec, parse_spec

KNOB_FIELDS = {
    "delta": "strategy.delta",
    "staleness_bound": "strategy.staleness_bound",
    "sync_every": "strategy.sync_every",
    "sparse_fraction": "strategy.sparse_fraction",
    "ema_beta": "strategy.ema_beta",
    "push_ratio": "compression.push.ratio",
    "pull_ratio": "compression.pull.ratio",
    "lr": "optimizer.lr",
    "workers": "scale.workers",
    "limit_mbit": "transport.limit_mbit",
    "straggler_deadline": "straggler_deadline",
}

_BY_FIELD = {path: name for name, path in KNOB_FIELDS.items()}

_ENDS = {"delta": "strategy.target_lssr"}
"""What a knob that is turned puts out of force: a threshold set by hand stays where it was set."""

KnobValue = float | int | bool | str | None


class Knobs(msgspec.Struct, frozen=True):
    """The knobs of a job and their values; every turn adds one to `version`."""

    version: int
    values: dict[str, KnobValue]


def knob_of(path: str) -> str | None:
    """Return the knob that turns a field of a job; None if none does."""
    return _BY_FIELD.get(path)


def initial_knobs(spec: JobSpec) -> Knobs:
    """Return the knobs this job has, at the values it was submitted with."""
    values: dict[str, KnobValue] = {
        name: value for name, path in KNOB_FIELDS.items() if (value := field_at(spec, path)) is not _ABSENT
    }
    signal = spec.strategy.needs.signal
    if signal is not None and not signal.has_threshold:
        del values["delta"]
    if spec.why_it_waits:
        del values["straggler_deadline"]
    return Knobs(0, {**values, "pause": False})


def turn(spec: JobSpec, knobs: Knobs, changes: Mapping[str, Any], expected_version: int | None = None) -> Knobs:
    """Return the knobs after `changes`, all or none; raise `KnobError` or `KnobConflict` and change nothing."""
    if expected_version is not None and expected_version != knobs.version:
        raise KnobConflict(expected_version, knobs.version)
    if not changes:
        raise KnobError("(none)", None, f"name at least one knob; this job has {', '.join(sorted(knobs.values))}")
    for name, value in changes.items():
        if name not in knobs.values:
            raise KnobError(name, value, f"this job has no such knob; it has {', '.join(sorted(knobs.values))}")
        if name == "pause" and not isinstance(value, bool):
            raise KnobError(name, value, "must be true or false")
        if name == "workers":
            _check_workers(spec, value)
        elif name == "straggler_deadline" and value is None and spec.strategy.needs.decides_ahead:
            raise KnobError(name, value, "decisions of this job rest on it: set a long one, such as 3600")
        elif name != "pause" and isinstance(value, bool):
            raise KnobError(name, value, "must be a number")
    turned = Knobs(knobs.version + 1, {**knobs.values, **changes})
    try:
        effective = apply_knobs(spec, turned)
    except SpecError as error:
        problem = error.problems[0]
        name = next(
            (name for name, path in KNOB_FIELDS.items() if path == problem.field and name in changes),
            next(iter(changes)),
        )
        raise KnobError(name, changes[name], problem.remedy) from error
    return Knobs(
        turned.version,
        {
            name: turned.values[name] if name == "pause" else field_at(effective, KNOB_FIELDS[name])
            for name in turned.values
        },
    )


def overlaid(asked: Knobs, before: Knobs, after: Knobs) -> Knobs:
    """Return the knobs `asked` for once the turns from `before` to `after`, made elsewhere, are part of them; each turn
    counts as one.
    """
    if after.version <= before.version:
        return asked
    turned = {name: value for name, value in after.values.items() if before.values.get(name) != value}
    return Knobs(asked.version + after.version - before.version, {**asked.values, **turned})


def apply_knobs(spec: JobSpec, knobs: Knobs) -> JobSpec:
    """Return the job as it is with these knobs."""
    data = spec.model_dump(mode="python")
    for name, path in KNOB_FIELDS.items():
        if name in knobs.values:
            _set(data, path, knobs.values[name])
            by_hand = knobs.values[name] not in (field_at(spec, path), "auto")
            if by_hand and name in _ENDS and field_at(spec, _ENDS[name]) is not _ABSENT:
                _set(data, _ENDS[name], None)
    scale = data["scale"]  # what is turned is within its bounds; a checkpoint's number may be of a job with others
    scale["min_workers"] = min(scale["min_workers"], scale["workers"])
    if scale["max_workers"] is not None:
        scale["max_workers"] = max(scale["max_workers"], scale["workers"])
    return parse_spec(data)


_ABSENT = object()


def field_at(value: Any, path: str) -> Any:
    """Return a field of a job, or of anything like one, by its dotted path; what is not there has no value at all."""
    for part in path.split("."):
        value = getattr(value, part, _ABSENT)
    return value


def _set(data: dict[str, Any], path: str, value: Any) -> None:
    *parents, leaf = path.split(".")
    for parent in parents:
        data = data[parent]
    data[leaf] = value


def _check_workers(spec: JobSpec, value: Any) -> None:
    low, high = spec.scale.min_workers, spec.scale.max_workers or spec.scale.workers
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise KnobError("workers", value, f"must be a whole number from min_workers={low} to max_workers={high}")

"""Whether a job can go on from a checkpoint: a pure function from both specifications to what stands in the way.

The job starts with the checkpoint's workers, as many as it may have and as there is room for, and then scales to its
own number. Knobs that were turned before the checkpoint stay as they were turned, so the specification that was
submitted then still fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from raysync.knobs import KNOB_FIELDS
from raysync.spec import JobSpec, parse_spec

_NUMBERS = (
    *("workers", "min_workers", "max_workers", "cpus_per_worker", "gpus_per_worker"),
    *("shards", "replicas", "spares"),
)
_WHERE = (*_NUMBERS, "placement", "shards_in")
_FREE = ("name", "budget", "checkpoint", "eval", "transport", "on_divergence", *(f"scale.{name}" for name in _WHERE))
"""What may differ from the job a checkpoint was taken of."""
_ABSENT = "nothing"


class Taken(NamedTuple):
    """What a checkpoint tells of the job it was taken of."""

    submitted: JobSpec
    in_force: JobSpec
    """The same with the knobs as they were when it was taken."""
    workers: int
    """How many trained then."""


class Difference(NamedTuple):
    """A field that is another here than it was there."""

    field: str
    here: object
    there: object


def taken_of(manifest: Mapping[str, Any]) -> Taken:
    """Return what the manifest of a checkpoint tells."""
    in_force = parse_spec(manifest["spec"])
    submitted = parse_spec(manifest["submitted"]) if "submitted" in manifest else in_force
    return Taken(submitted, in_force, len(manifest["workers"]))


def continued(taken: Taken) -> JobSpec:
    """Return the job as it was when the checkpoint was taken: turned knobs, and the bounds it was submitted with."""
    bounds = taken.submitted.scale
    scale = taken.in_force.scale.model_dump() | {
        "min_workers": bounds.min_workers,
        "max_workers": bounds.max_workers or bounds.workers,
    }
    return parse_spec(taken.in_force.model_dump() | {"scale": scale})


def obstacle(spec: JobSpec, taken: Taken) -> str | None:
    """Return why `spec` cannot go on from the checkpoint, naming fields and both values; None if it can."""
    turned = {found.field: found.there for found in _differences(spec, taken.in_force)}
    wrong = [
        found
        for found in _differences(spec, taken.submitted)
        if not found.field.startswith(_FREE) and not (_is_knob(found.field) and found.field not in turned)
    ]
    if wrong:
        return _refusal(wrong, turned)
    return _crowd(spec, taken.workers)


SHORT_OF_ROOM_S = 10.0
"""So long a job waits for room for all of a checkpoint's workers: those that ran before it may be about to go."""


def starting(spec: JobSpec, workers: Sequence[int], fits: int | None = None) -> list[int]:
    """Return which of a checkpoint's workers, or pipelines, a job starts with: no more than it may have, and, once it
    has waited long enough, as many as there is room for (`fits`), but not fewer than it must have.
    """
    scale = spec.scale
    most = scale.max_workers or scale.workers
    count = min(len(workers), most if fits is None else max(fits, min(scale.min_workers, most)), most)
    return sorted(workers)[:count]


def _crowd(spec: JobSpec, workers: int) -> str | None:
    """Return why the job cannot start with the checkpoint's workers."""
    scale = spec.scale
    if scale.shards_in == "workers" and scale.shards > workers:
        return (
            f"was taken with {workers} workers, and shards_in='workers' has {scale.shards} shards to put into them: "
            "set scale.shards_in to actors"
        )
    return None


def _refusal(wrong: list[Difference], turned: Mapping[str, object]) -> str:
    told = []
    for field, here, there in wrong:
        then = f", {turned[field]} when it was taken" if turned.get(field, there) != there else ""
        told.append(f"{field} ({here} here, {there} there{then})")
    remedy = "only budget, checkpoint, eval, transport, the numbers of workers and shards and where they run may change"
    if any(_is_knob(found.field) for found in wrong):
        remedy += "; turn a knob once the job runs"
    return f"was taken of a job with another {', '.join(told)}; {remedy}"


def _is_knob(field: str) -> bool:
    return field in KNOB_FIELDS.values()


def _differences(here: JobSpec, there: JobSpec) -> list[Difference]:
    return list(_walk(here.model_dump(), there.model_dump(), ""))


def _walk(here: Any, there: Any, path: str) -> Iterator[Difference]:
    """Yield where two trees differ; of members of different kinds only the kind, whose fields cannot be compared."""
    if not (isinstance(here, dict) and isinstance(there, dict)):
        if here != there:
            yield Difference(path, here, there)
    elif here.get("kind") != there.get("kind"):
        yield Difference(f"{path}.kind", here.get("kind"), there.get("kind"))
    else:
        for name in {**here, **there}:
            inner = f"{path}.{name}" if path else name
            yield from _walk(here.get(name, _ABSENT), there.get(name, _ABSENT), inner)

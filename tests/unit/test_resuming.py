"""Which jobs can go on from which checkpoints, and what is said of those that cannot."""

from __future__ import annotations

import json
from typing import Any

import pytest

from raysync.control.resuming import Taken, continued, obstacle, starting, taken_of
from raysync.engine.coordinator.knob_board import KnobBoard
from raysync.knobs import Knobs, apply_knobs, initial_knobs
from raysync.spec import JobSpec, parse_spec

SPEC: dict[str, Any] = {
    "task": {"kind": "digits"},
    "strategy": {"kind": "selsync", "delta": 0.3},
    "compression": {"push": {"kind": "topk", "ratio": 0.1}},
    "scale": {"workers": 2, "max_workers": 4, "shards": 2},
}


def spec(**changes: Any) -> JobSpec:
    return parse_spec({**SPEC, **changes})


def taken(workers: int = 2, **knobs: Any) -> Taken:
    """A checkpoint of that job, taken after these knobs were turned, as its manifest tells of it."""
    submitted = spec()
    values = {**initial_knobs(submitted).values, "workers": workers, **knobs}
    in_force = apply_knobs(submitted, Knobs(1, values))
    manifest = {
        "spec": in_force.model_dump(mode="json"),
        "submitted": submitted.model_dump(mode="json"),
        "workers": list(range(workers)),
    }
    return taken_of(json.loads(json.dumps(manifest)))


GOES_ON = [
    ("nothing was changed", {}, {}),
    ("it was scaled up", {"workers": 3}, {}),
    ("it was scaled down", {"workers": 1}, {}),
    ("it is to have more workers than then", {"workers": 3}, {"scale": {**SPEC["scale"], "workers": 4}}),
    ("it may not have as many workers as then", {"workers": 4}, {"scale": {**SPEC["scale"], "max_workers": 2}}),
    ("it must have more workers than then", {"workers": 1}, {"scale": {**SPEC["scale"], "min_workers": 2}}),
    ("it has another number of shards", {}, {"scale": {**SPEC["scale"], "shards": 3}}),
    ("delta was turned", {"delta": 0.9}, {}),
    ("delta was turned off", {"delta": float("inf")}, {}),
    ("lr and ratio were turned", {"lr": 0.01, "push_ratio": 0.5}, {}),
    ("the turned value is given", {"delta": 0.9}, {"strategy": {"kind": "selsync", "delta": 0.9}}),
    ("another budget", {}, {"budget": {"steps": 9}, "eval": {"every": 7}, "transport": "ray", "name": "other"}),
]


@pytest.mark.parametrize(("knobs", "changes"), [row[1:] for row in GOES_ON], ids=[row[0] for row in GOES_ON])
def test_what_was_turned_or_scaled_does_not_stand_in_the_way(knobs: dict[str, Any], changes: dict[str, Any]) -> None:
    assert obstacle(spec(**changes), taken(**knobs)) is None


REFUSED: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    ({}, {"seed": 9}, ["another seed (9 here, 0 there)"]),
    ({}, {"strategy": {"kind": "bsp"}}, ["strategy.kind (bsp here, selsync there)"]),
    (
        {"delta": 0.9},
        {"strategy": {"kind": "selsync", "delta": 0.5}},
        ["strategy.delta (0.5 here, 0.3 there, 0.9 when it was taken)", "turn a knob once the job runs"],
    ),
    ({}, {"optimizer": {"kind": "sgd", "momentum": 0.5}, "seed": 1}, ["optimizer.momentum (0.5 here", "seed (1 here"]),
    ({}, {"scale": {**SPEC["scale"], "block_bytes": 64}}, ["scale.block_bytes (64 here"]),
    ({"workers": 1}, {"scale": {**SPEC["scale"], "shards_in": "workers"}}, ["with 1 workers", "2 shards", "actors"]),
]


@pytest.mark.parametrize(("knobs", "changes", "words"), REFUSED, ids=[row[2][0] for row in REFUSED])
def test_a_refusal_names_the_field_and_both_values(
    knobs: dict[str, Any], changes: dict[str, Any], words: list[str]
) -> None:
    why_not = obstacle(spec(**changes), taken(**knobs))
    assert why_not is not None
    assert all(word in why_not for word in words), why_not


STARTING = [
    ("as many as then", {}, None, [0, 2, 5]),
    ("no more than it may have", {"max_workers": 2}, None, [0, 2]),
    ("more are added later", {"workers": 4}, None, [0, 2, 5]),
    ("as many as there is room for", {"max_workers": 4}, 2, [0, 2]),
    ("not fewer than it must have", {"max_workers": 4, "min_workers": 2}, 1, [0, 2]),
    ("one, though there is room for none", {"max_workers": 4}, 0, [0]),
    ("no more than there were", {"max_workers": 4}, 9, [0, 2, 5]),
]


@pytest.mark.parametrize(("scale", "fits", "expected"), [row[1:] for row in STARTING], ids=[row[0] for row in STARTING])
def test_a_job_starts_with(scale: dict[str, Any], fits: int | None, expected: list[int]) -> None:
    assert starting(spec(scale={"workers": 2, "max_workers": 4, **scale}), [5, 0, 2], fits) == expected


def test_without_a_specification_it_goes_on_as_it_was_and_can_still_be_scaled() -> None:
    found = taken(workers=3, delta=0.9)
    again = continued(found)
    assert (again.scale.workers, again.scale.min_workers, again.scale.max_workers) == (3, 1, 4)
    assert again.strategy.delta == 0.9
    assert obstacle(again, found) is None


def test_a_checkpoint_of_an_older_raysync_tells_only_what_was_in_force() -> None:
    manifest = {"spec": spec().model_dump(mode="json"), "workers": [0, 1]}
    assert obstacle(spec(), taken_of(manifest)) is None


def test_a_job_that_goes_on_scales_to_its_own_number_and_does_not_wait() -> None:
    first = KnobBoard(spec())
    first.turn({"workers": 3, "pause": True, "delta": 0.9, "limit_mbit": 5.0}, None)
    first.apply()
    first.turn({"workers": 4, "lr": 0.5}, None)  # waits for a decision that never came
    again = KnobBoard(spec())
    again.load_state_dict(first.state_dict())
    again.begin_anew(step=7)
    assert again.knobs.values["workers"] == 3, "until the next decision those of the checkpoint train"
    ahead = again.ahead().values
    assert (ahead["workers"], ahead["pause"], ahead["delta"], ahead["lr"]) == (2, False, 0.9, 0.5)
    assert ahead["limit_mbit"] is None, "the line is the new job's"
    last = [(turned.after, turned.asked_step) for turned in again.apply()][-1]
    assert last == ({"pause": False, "workers": 2, "limit_mbit": None}, 7)

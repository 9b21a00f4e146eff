"""A job that grows and shrinks while it trains: nobody restarts, nobody stands still for long, and it learns as well."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from actors import Job, submit
from raysync.spec import JobSpec
from tests.jobs import job
from tests.runtime.test_jobs import running, wait_for, workers_of
from tests.strikes import begins_s, told_once

STEPS = 1500
_STILL_S = 1.0


def digits_of(workers: int) -> JobSpec:
    """Digits, with steps long enough that a newcomer has something to do when it is there."""
    return job(
        {"kind": "selsync", "delta": 0.1},
        task={"kind": "custom", "entrypoint": "tests.drowsy:Drowsy"},
        optimizer={"kind": "sgd", "lr": 0.05, "momentum": 0.9},
        scale={"workers": workers, "max_workers": 4, "shards": 2, "cpus_per_worker": 0.5},
        budget={"steps": STEPS},
        eval={"every": 100},
    )


def ended(handle: Job) -> Any:
    assert handle.wait(120)
    result = handle.result()
    handle.forget()
    assert result.state == "SUCCEEDED", result.reason
    return result


@pytest.mark.matrix
@pytest.mark.timeout(400)
def test_two_four_three_two_workers_learn_as_well_as_two_and_stand_still_for_less_than_a_second(storage: str) -> None:
    fixed = ended(submit(digits_of(2), storage_path=storage))
    handle = submit(digits_of(2), storage_path=storage)
    before = workers_of(wait_for(handle, running))
    for count in (4, 3, 2):
        at = handle.status().step
        handle.resize(count)
        wait_for(handle, lambda s, count=count: running(s) and len(workers_of(s)) == count)
        wait_for(handle, lambda s, at=at: s.step > at + 100)
    assert workers_of(handle.status()) == before, "nobody was restarted"
    result = ended(handle)
    records = result.records()
    assert told_once(records) == (0, 0)
    views = [record for record in records if record.kind == "view"]
    sizes = [len(view.data["members"]) for view in views]
    assert (sizes[0], max(sizes)) == (2, 4)
    steps_s = [begins_s(records) + record.time_s for record in records if record.kind == "decision"]
    assert max(after - before for before, after in itertools.pairwise(steps_s)) < _STILL_S
    found, expected = (run.metrics["eval/accuracy"] for run in (result, fixed))
    assert found >= expected - 0.005

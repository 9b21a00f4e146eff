"""Studies over HTTP, around a runtime that trains nothing and a study's process that only talks."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.server.app import create_app
from service.server.wiring import assemble
from service.store import Store
from tests.service.conftest import SPEC, TALKS, World, settings_for, tokens_for, until
from tests.service.still_runtime import StillRuntime

STUDY: dict[str, Any] = {
    "name": "ratios",
    "base": SPEC,
    "space": {"strategy.delta": {"low": 0.1, "high": 0.5}},
    "floor": {"metric": "eval/accuracy", "at_least": 0.9},
    "trials": 3,
}


@pytest.fixture
def studies(tmp_path: Path, store: Store) -> Iterator[World]:
    with serving(tmp_path, store, tokens_for(store)) as world:
        yield world


def submit(world: World, **changes: Any) -> dict[str, Any]:
    answer = world.call("POST", "/api/v1/studies", json={"spec": {**STUDY, **changes}})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    assert answer.headers["Location"] == f"/api/v1/studies/{found['id']}"
    return found


def look(world: World, id: str) -> dict[str, Any]:
    found: dict[str, Any] = world.call("GET", f"/api/v1/studies/{id}").json()
    return found


def test_a_study_enters_its_trials_as_jobs_and_tells_what_it_found(studies: World) -> None:
    study = submit(studies)
    assert (study["state"], study["trials"], study["begun"]) == ("PENDING", 3, 0)
    until(lambda: look(studies, study["id"])["is_terminal"])
    found = look(studies, study["id"])
    assert (found["state"], found["begun"], found["over"]) == ("SUCCEEDED", 3, 3)
    assert found["front"] == [2, 0]
    assert found["picks"]["smallest"]["trial"] == 2
    assert found["picks"]["smallest"]["spec"]["strategy"]["delta"] == 0.2
    assert "of 3 trials" in found["sentence"]
    assert len(found["hypervolume"]) == 3
    again = studies.call("POST", "/api/v1/jobs", json={"spec": found["picks"]["smallest"]["spec"]})
    assert again.status_code == 201, "a pick is a job that can be submitted as it is"

    trials = studies.call("GET", f"/api/v1/studies/{study['id']}/trials").json()
    assert [trial["number"] for trial in trials] == [0, 1, 2]
    job = studies.job(trials[0]["jobs"][0])
    assert job["owner"] == "admin"
    assert job["priority"] == -1, "behind what people submit"
    assert job["spec"]["labels"] == {"study": study["id"]}

    listed = studies.call("GET", "/api/v1/studies", role="viewer").json()["items"]
    assert [item["id"] for item in listed] == [study["id"]]
    stream = studies.call("GET", f"/api/v1/studies/{study['id']}/trials/stream", role="viewer").text
    told = [json.loads(line.removeprefix("data: ")) for line in stream.splitlines() if line.startswith("data: ")]
    assert [trial["number"] for trial in told[:-1]] == [0, 1, 2]
    assert told[-1]["state"] == "SUCCEEDED"
    path = f"/api/v1/studies/{study['id']}/trials/stream"
    assert studies.call("GET", path, headers={"Last-Event-ID": "2"}).status_code == 204, "all of it was had"
    last = studies.call("GET", f"{path}?after=2").text
    assert "event: trial" not in last
    assert "event: end" in last


def test_a_study_is_stopped_and_keeps_what_it_has(studies: World) -> None:
    study = submit(studies, name="slow")
    until(lambda: look(studies, study["id"])["begun"] >= 1)
    answer = studies.call("POST", f"/api/v1/studies/{study['id']}/stop")
    assert answer.status_code == 202
    until(lambda: look(studies, study["id"])["is_terminal"])
    found = look(studies, study["id"])
    assert found["state"] == "STOPPED"
    assert found["begun"] == 1
    again = studies.call("POST", f"/api/v1/studies/{study['id']}/stop")
    assert (again.status_code, again.json()["state"]) == (202, "STOPPED")


def test_a_job_the_service_refuses_is_a_trial_that_failed(studies: World) -> None:
    study = submit(studies, name="twice")
    until(lambda: look(studies, study["id"])["is_terminal"])
    (trial,) = studies.call("GET", f"/api/v1/studies/{study['id']}/trials").json()
    assert trial["state"] == "FAILED"
    assert "there is no such field" in trial["reason"]


def test_a_process_that_dies_is_started_again_and_at_last_given_up(
    studies: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.studies.keeper._AGAIN_S", 0.05)
    study = submit(studies, name="dying")
    until(lambda: look(studies, study["id"])["is_terminal"], 60)
    found = look(studies, study["id"])
    assert found["state"] == "FAILED"
    assert "its process ended 5 times" in found["reason"]


@contextlib.contextmanager
def serving(tmp_path: Path, store: Store, tokens: dict[str, str]) -> Iterator[World]:
    runtime = StillRuntime()
    parts = assemble(settings_for(tmp_path), store, runtime, TALKS)
    with TestClient(create_app(parts)) as http:
        yield World(http, parts, runtime, tokens)


def test_the_next_service_goes_on_with_a_study(tmp_path: Path, store: Store) -> None:
    tokens = tokens_for(store)
    with serving(tmp_path, store, tokens) as first:
        id = submit(first, name="slow")["id"]
        until(lambda: look(first, id)["begun"] == 1)
    with serving(tmp_path, store, tokens) as second:
        assert not look(second, id)["is_terminal"]
        second.call("POST", f"/api/v1/studies/{id}/stop")
        until(lambda: look(second, id)["is_terminal"])
        assert look(second, id)["reason"] == "as it was told", "its process was started again, and ended it"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"floor": {"metric": "eval/bleu", "at_least": 1}}, "has no metric"),
        ({"base": {"task": {"kind": "nothing"}}}, "makes no job"),
        ({"trails": 3}, "did you mean"),
    ],
)
def test_a_study_that_cannot_be_is_refused(studies: World, changes: dict[str, Any], words: str) -> None:
    answer = studies.call("POST", "/api/v1/studies", json={"spec": {**STUDY, **changes}})
    assert answer.status_code == 422
    assert words in answer.text


def test_who_may_what(studies: World) -> None:
    assert studies.call("POST", "/api/v1/studies", role="viewer", json={"spec": STUDY}).status_code == 403
    assert studies.call("GET", "/api/v1/studies", role=None).status_code == 401
    assert studies.call("POST", "/api/v1/studies/none-1/stop", role="viewer").status_code == 403
    for path in ("", "/trials", "/trials/stream"):
        answer = studies.call("GET", f"/api/v1/studies/none-1{path}")
        assert answer.status_code == 404
        assert "there is no study" in answer.json()["detail"]

"""One request makes one job, however often it is sent and whatever changes between; and entity tags as RFC 9110 says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import Field

from raysync.spec import Budget, JobSpec, as_written, parse_spec
from raysync.sync import SelSync
from raysync.tasks import Digits
from service.client.call import Call
from service.client.requests import Requests
from service.errors import BadRequest
from service.http.etag import parse_tags
from service.security.auth import Role, create_token
from tests.service.conftest import SPEC, World, until
from tests.service.test_packages import packed

BODY = {"spec": SPEC}


def sent(world: World, key: str, body: Any = BODY, role: str = "admin") -> Any:
    return world.call("POST", "/api/v1/jobs", role, json=body, headers={"Idempotency-Key": key})


def test_a_key_outlives_its_job(world: World) -> None:
    id = sent(world, "k").json()["id"]
    until(lambda: id in world.runtime.alive)
    world.runtime.enter(id, "SUCCEEDED")
    until(lambda: world.job(id)["is_terminal"])
    assert world.call("DELETE", f"/api/v1/jobs/{id}").status_code == 204
    again = sent(world, "k")
    assert (again.status_code, again.json()["type"]) == (410, "urn:raysync:job-removed")
    assert id in again.json()["detail"]
    assert len(world.runtime.launches) == 1, "what was removed is not run again by a late retry"
    assert sent(world, "k2").status_code == 201


def test_a_replay_answers_before_it_validates(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    content = packed({"mine.py": "class Task: pass"})
    headers = {"Content-Type": "application/zip"}
    package = world.call("POST", "/api/v1/packages", content=content, headers=headers).json()["id"]
    body = {"spec": {**SPEC, "task": {"kind": "custom", "entrypoint": "mine:Task"}}, "package": package}
    first = sent(world, "k", body)
    assert first.status_code == 201, first.text

    def never(*arguments: Any) -> None:
        raise BadRequest("spec", "a later raysync does not run this any more")

    monkeypatch.setattr("service.http.entering.vetted", never)
    again = sent(world, "k", body)
    assert (again.status_code, again.json()["id"]) == (201, first.json()["id"])
    assert again.headers["idempotency-replayed"] == "true"
    assert sent(world, "new", body).status_code == 422
    other = sent(world, "k", {**body, "spec": {}})
    assert (other.status_code, other.json()["type"]) == (422, "urn:raysync:idempotency-key-reused")


def test_a_key_belongs_to_the_token_and_not_to_its_name(world: World) -> None:
    tokens = world.parts.store.tokens
    world.tokens["one"], world.tokens["two"] = (create_token(tokens, "ci", Role.OPERATOR) for _ in range(2))
    one, two = sent(world, "k", role="one"), sent(world, "k", role="two")
    assert (one.status_code, two.status_code) == (201, 201)
    assert one.json()["id"] != two.json()["id"]
    assert sent(world, "k", {"spec": {**SPEC, "seed": 3}}, role="two").status_code == 422
    assert sent(world, "k", role="one").json()["id"] == one.json()["id"]


def test_a_field_that_comes_later_does_not_break_a_replay(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Order, spaces and later defaults are no part of what was asked; every field that was written is."""
    first = sent(world, "k").json()["id"]

    class LaterBudget(Budget):
        patience: int = Field(default=7)

    class LaterSpec(JobSpec):
        budget: LaterBudget = LaterBudget()

    from service.http.schemas import JobCreate

    class LaterCreate(JobCreate):
        spec: LaterSpec
        colour: int = 0

    monkeypatch.setattr("service.http.routes.jobs.JobCreate", LaterCreate)
    assert sent(world, "k").json()["id"] == first
    reordered = json.dumps({"spec": dict(reversed(SPEC.items()))}, indent=3)
    headers = {"Idempotency-Key": "k", "Content-Type": "application/json"}
    assert world.call("POST", "/api/v1/jobs", content=reordered, headers=headers).json()["id"] == first
    assert sent(world, "k", {**BODY, "colour": 1}).status_code == 422
    assert sent(world, "later").status_code == 201


class Written(Requests):
    """A client that sends nothing: it returns what it would send."""

    def _send(self, call: Call[Any]) -> Call[Any]:
        return call


def test_clients_send_what_was_asked_for_and_no_defaults() -> None:
    assert Written().submit(SPEC, key="k").json == {"spec": SPEC}
    made = JobSpec(task=Digits(), strategy=SelSync(delta=float("inf")), budget=Budget(steps=5))
    assert as_written(made) == {
        "task": {"kind": "digits"},
        "strategy": {"kind": "selsync", "delta": "Infinity"},
        "budget": {"steps": 5},
    }
    assert parse_spec(as_written(made)) == made
    asked = (
        Written()
        .submit(
            made, key="k", package="p" * 64, pip=("x==1",), resume_from="job-1", on_cluster_loss="resume", priority=-3
        )
        .json
    )
    assert {name: value for name, value in asked.items() if name != "spec"} == {
        "package": "p" * 64,
        "pip": ["x==1"],
        "resume_from": "job-1",
        "on_cluster_loss": "resume",
        "priority": -3,
    }


@pytest.mark.parametrize(
    ("header", "strong", "weak"),
    [
        ("*", True, True),
        ('"3"', True, True),
        ('W/"3"', False, True),
        ('"1", "3"', True, True),
        ('"1","2" , W/"3"', False, True),
        (' , "3",, ', True, True),
        ('"1", "2"', False, False),
        ('"a,b", "3"', True, True),
        ('"33"', False, False),
        ('""', False, False),
        ("", False, False),
    ],
)
def test_tags_are_compared_as_the_rfc_says(header: str, strong: bool, weak: bool) -> None:
    tags = parse_tags(header, "If-Match")
    assert (tags.match_strongly("3"), tags.match_weakly("3")) == (strong, weak)


@pytest.mark.parametrize("header", ["3", '"3', '"3" "4"', 'w/"3"', "'3'", '"3"x', '*, "3"', '"3";x', '"a b"'])
def test_what_is_no_list_of_tags_is_refused(header: str, world: World) -> None:
    with pytest.raises(BadRequest, match="If-Match"):
        parse_tags(header, "If-Match")
    answer = world.call(
        "PATCH", f"/api/v1/jobs/{world.running()}/knobs", json={"values": {"delta": 1}}, headers={"If-Match": header}
    )
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "header.If-Match")


def test_knobs_are_guarded_by_lists_of_tags(world: World) -> None:
    id = world.running()
    path = f"/api/v1/jobs/{id}/knobs"

    def turned(tags: str, **body: Any) -> int:
        answer = world.call("PATCH", path, json={"values": {"delta": 0.5}, **body}, headers={"If-Match": tags})
        return int(answer.status_code)

    assert turned('W/"0"') == 412, "a weak tag is not enough for a change"
    assert turned('"7", "8"') == 412
    assert turned('"nonsense"') == 412
    assert turned('"5", "0"') == 200
    assert turned('"0"') == 412
    assert turned('"0", "1"') == 200
    assert turned("*") == 200
    assert turned('"3"', expected_version=2) == 422
    assert turned('"2", "3"', expected_version=2) == 412
    assert turned('"2", "3"', expected_version=3) == 200
    world.parts.store.jobs.change(id, {"knob_version": 1, "knob_version_in_force": 1})  # the books are behind
    assert turned('"1", "4"') == 200
    until(lambda: world.call("GET", path).json()["version"] == 5)


def test_knobs_that_have_not_changed_are_not_sent_again(world: World) -> None:
    path = f"/api/v1/jobs/{world.running()}/knobs"
    for tags, status in (('"0"', 304), ('W/"0"', 304), ('"9", W/"0"', 304), ("*", 304), ('"1"', 200), ('W/"00"', 200)):
        answer = world.call("GET", path, headers={"If-None-Match": tags})
        assert (answer.status_code, answer.headers["etag"]) == (status, '"0"'), tags
        assert bool(answer.content) == (status == 200)
    assert world.call("GET", path, headers={"If-None-Match": "0"}).status_code == 422

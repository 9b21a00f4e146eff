"""Every route, as the OpenAPI document has it: tokens, roles, bodies, ids; and what each does."""

from __future__ import annotations

import json
import math
import tempfile
from typing import Any

import pytest

from service.server.app import create_app
from service.server.wiring import assemble
from service.settings import Settings
from service.store import Store
from tests.service.conftest import SPEC, World, until
from tests.service.still_runtime import StillRuntime


def _document() -> dict[str, Any]:
    parts = assemble(Settings(), Store(f"sqlite:///{tempfile.gettempdir()}/never-opened.db"), StillRuntime())
    return create_app(parts).openapi()


DOCUMENT = _document()
OPERATIONS = [
    (method.upper(), path, op) for path, methods in DOCUMENT["paths"].items() for method, op in methods.items()
]
OPEN = {"/healthz", "/readyz"}
GUARDED = [(method, path, op) for method, path, op in OPERATIONS if path not in OPEN]
ARTIFACT = "/api/v1/jobs/{id}/artifacts/{folder}/{file}"
VIEWED = {(method, path) for method, path, _ in GUARDED if method == "GET" and path != ARTIFACT}
REMOVED = {("DELETE", "/api/v1/jobs/{id}")}


def _filled(path: str, id: str = "some-job") -> str:
    """Return a path with its parameters, and with what keeps a stream of all jobs from going on for ever."""
    query = f"?jobs={id}" if path == "/api/v1/stream" else ""
    return path.replace("{id}", id).replace("{folder}/{file}", "final/model.pt") + query


def _id(operation: tuple[str, str, Any]) -> str:
    return f"{operation[0]} {operation[1]}"


def test_the_document_has_every_route_of_the_design() -> None:
    found = {(method, path.removeprefix("/api/v1")) for method, path, _ in OPERATIONS}
    wanted = {
        *(("POST", "/jobs"), ("GET", "/jobs"), ("GET", "/jobs/{id}"), ("DELETE", "/jobs/{id}")),
        *(("POST", f"/jobs/{{id}}/{verb}") for verb in ("stop", "pause", "resume", "checkpoints")),
        *(("PUT", "/jobs/{id}/workers"), ("GET", "/jobs/{id}/knobs"), ("PATCH", "/jobs/{id}/knobs")),
        *(("GET", f"/jobs/{{id}}/{what}") for what in ("metrics", "metrics/stream", "events/stream", "logs", "checkpoints")),
        *(("GET", f"/jobs/{{id}}/{what}") for what in ("artifacts", "artifacts/{folder}/{file}", "trace")),
        *(("GET", "/metrics/series"), ("GET", "/stream"), ("GET", "/me"), ("GET", "/packages/{id}")),
        *(("POST", "/packages"), ("GET", "/components"), ("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/metrics")),
    }  # fmt: skip
    assert wanted <= found
    assert all(op.get("description") for method, path, op in OPERATIONS), "every route says what it does"


@pytest.mark.parametrize("operation", GUARDED, ids=_id)
def test_without_a_token_nothing_is_told(operation: tuple[str, str, Any], world: World) -> None:
    method, path, _ = operation
    for headers in ({}, {"Authorization": "Bearer rs_00000000_wrong"}, {"Authorization": "Basic eDp5"}):
        answer = world.call(method, _filled(path), role=None, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert answer.json()["type"] == "urn:raysync:unauthorized"


@pytest.mark.parametrize("operation", GUARDED, ids=_id)
def test_too_small_a_role_is_refused(operation: tuple[str, str, Any], world: World) -> None:
    method, path, _ = operation
    if (method, path) in VIEWED:
        allowed = ("viewer", "operator", "admin")
    else:
        allowed = ("admin",) if (method, path) in REMOVED else ("operator", "admin")
    for role in ("viewer", "operator", "admin"):
        answer = world.call(method, _filled(path), role=role)
        assert (answer.status_code == 403) == (role not in allowed), (role, answer.text)
        if role not in allowed:
            assert answer.json()["type"] == "urn:raysync:forbidden"


@pytest.mark.parametrize("operation", [o for o in GUARDED if "requestBody" in o[2]], ids=_id)
def test_a_bad_body_is_named(operation: tuple[str, str, Any], world: World) -> None:
    method, path, op = operation
    path = path.replace("{id}", world.running())
    kind = next(iter(op["requestBody"]["content"]))
    bodies = [b"not a zip"] if kind == "application/zip" else [b"", b"{", b"[]", b'{"unknown": 1}', b"null", b"\xff"]
    for body in bodies:
        answer = world.call(method, path, content=body, headers={"Content-Type": kind})
        assert answer.status_code == (400 if body in (b"", b"{", b"\xff") else 422), (body, answer.text)
        found = answer.json()
        assert answer.headers["content-type"] == "application/problem+json"
        assert found["detail"]
        assert found["request_id"] == answer.headers["x-request-id"]
    assert world.call(method, path, content=b"{}", headers={"Content-Type": "text/plain"}).status_code == 415


@pytest.mark.parametrize("operation", [o for o in GUARDED if "{id}" in o[1]], ids=_id)
def test_an_unknown_id_is_not_found(operation: tuple[str, str, Any], world: World) -> None:
    method, path, op = operation
    bodies = {"/knobs": {"values": {"delta": 1}}, "/workers": {"count": 2}, "/stop": {}}
    body = {"json": next(b for end, b in bodies.items() if path.endswith(end))} if "requestBody" in op else {}
    unknown = 64 * "0" if "/packages/" in path else "no-such-job"
    answer = world.call(method, _filled(path, unknown), **body)
    assert answer.status_code == 404, answer.text
    assert answer.json()["type"] == "urn:raysync:not-found"
    assert unknown in answer.json()["detail"]


def test_submitting_answers_at_once_and_the_job_is_launched(world: World) -> None:
    answer = world.call("POST", "/api/v1/jobs", json={"spec": SPEC})
    job = answer.json()
    assert (answer.status_code, job["state"], job["owner"]) == (201, "PENDING", "admin")
    assert answer.headers["location"] == f"/api/v1/jobs/{job['id']}"
    until(lambda: job["id"] in world.runtime.alive)
    assert json.loads(world.runtime.launches[0].spec)["strategy"]["delta"] == 0.3


def test_a_wrong_specification_names_the_field(world: World) -> None:
    answer = world.call("POST", "/api/v1/jobs", json={"spec": {**SPEC, "strategy": {"kind": "selsync", "dleta": 0.3}}})
    assert answer.status_code == 422
    assert answer.json()["errors"] == [
        {"field": "spec.strategy.dleta", "message": "there is no such field; did you mean 'delta'?"}
    ]
    late = {"kind": "async_sparse", "sparse_fraction": 0.34}
    answer = world.call("POST", "/api/v1/jobs", json={"spec": {**SPEC, "strategy": late}})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"].startswith("spec.strategy")
    assert "3 flights of a weight in the air at once" in answer.json()["errors"][0]["message"]
    answer = world.call("POST", "/api/v1/jobs", json={"spec": {**SPEC, "seed": "7"}})
    assert answer.json()["errors"][0]["field"] == "spec.seed", "a string is no number"


def test_an_idempotency_key_makes_one_job(world: World) -> None:
    send = lambda body, key: world.call("POST", "/api/v1/jobs", json=body, headers={"Idempotency-Key": key})  # noqa: E731
    first, again = send({"spec": SPEC}, "k1"), send({"spec": SPEC}, "k1")
    assert (again.status_code, again.json()["id"]) == (201, first.json()["id"])
    assert again.headers["idempotency-replayed"] == "true"
    other = send({"spec": {**SPEC, "seed": 9}}, "k1")
    assert (other.status_code, other.json()["type"]) == (422, "urn:raysync:idempotency-key-reused")
    assert send({"spec": SPEC}, "k2").json()["id"] != first.json()["id"]


def test_pages_reach_every_job_once_and_filters_hold(world: World) -> None:
    ids = [world.submit() for _ in range(7)]
    found, cursor = [], None
    while True:
        page = world.call("GET", "/api/v1/jobs", params={"limit": 3, **({"cursor": cursor} if cursor else {})}).json()
        found += [job["id"] for job in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert found == ids[::-1]
    assert world.call("GET", "/api/v1/jobs", params={"state": "FAILED"}).json()["items"] == []
    assert world.call("GET", "/api/v1/jobs", params={"cursor": "nonsense"}).status_code == 422
    assert world.call("GET", "/api/v1/jobs", params={"state": "GONE"}).status_code == 422


def test_knobs_turn_with_a_version_an_etag_and_a_way_back(world: World) -> None:
    id = world.running()
    path = f"/api/v1/jobs/{id}/knobs"
    assert world.call("GET", path).headers["etag"] == '"0"'
    answer = world.call("PATCH", path, json={"values": {"delta": 0.5}}, headers={"If-Match": '"0"'})
    assert (answer.json()["version"], answer.headers["etag"]) == (1, '"1"')
    assert answer.json()["before"] == {"delta": 0.3}
    late = world.call("PATCH", path, json={"values": {"delta": 0.9}}, headers={"If-Match": '"0"'})
    assert (late.status_code, late.json()["type"]) == (412, "urn:raysync:precondition-failed")
    late = world.call("PATCH", path, json={"values": {"delta": 0.9}, "expected_version": 0})
    assert (late.status_code, late.json()["type"]) == (409, "urn:raysync:knob-conflict")
    dry = world.call("PATCH", path, json={"values": {"delta": 0.9}, "dry_run": True}).json()
    assert (dry["version"], dry["values"]["delta"], dry["dry_run"]) == (2, 0.9, True)
    assert world.call("GET", path).json()["values"]["delta"] == 0.5, "a dry run changes nothing"
    undone = world.call("PATCH", path, json={"values": answer.json()["before"]}).json()
    assert (undone["version"], undone["values"]["delta"]) == (2, 0.3)
    until(lambda: world.call("GET", path).json()["version_in_force"] == 2)
    events = world.call("GET", f"/api/v1/jobs/{id}/events", params={"kind": "knobs"}).json()["items"]
    assert [(e["step"], e["data"]["before"], e["data"]["after"]) for e in events] == [
        (7, {"delta": 0.3}, {"delta": 0.5}),
        (7, {"delta": 0.5}, {"delta": 0.3}),
    ]


def test_an_infinite_threshold_travels_as_a_word(world: World) -> None:
    id = world.running(spec={"strategy": {"kind": "selsync", "delta": "Infinity"}})
    assert json.loads(world.runtime.launches[0].spec)["strategy"]["delta"] == "Infinity"
    path = f"/api/v1/jobs/{id}/knobs"
    assert world.call("GET", path).json()["values"]["delta"] == "Infinity"
    world.call("PATCH", path, json={"values": {"delta": 0.5}})
    assert world.call("PATCH", path, json={"values": {"delta": "Infinity"}}).status_code == 200
    assert math.isinf(float(world.runtime.alive[id].board.spec.strategy.delta))  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"dleta": 1}, "no such knob"),
        ({"delta": -1}, "greater than or equal to 0"),
        ({"delta": True}, "must be a number"),
        ({"pause": 1}, "true or false"),
        ({"workers": 9}, "max_workers=4"),
        ({"staleness_bound": 3}, "no such knob"),
    ],
)
def test_a_knob_the_job_cannot_turn_is_named(values: dict[str, Any], word: str, world: World) -> None:
    answer = world.call("PATCH", f"/api/v1/jobs/{world.running()}/knobs", json={"values": values})
    assert answer.status_code == 422
    assert word in answer.json()["detail"]
    assert answer.json()["errors"][0]["field"] == f"values.{next(iter(values))}"


def test_lifecycle_verbs_reach_the_job(world: World) -> None:
    id = world.running()
    job = world.runtime.alive[id]
    assert world.call("POST", f"/api/v1/jobs/{id}/pause").status_code == 202
    assert job.board.ahead().values["pause"] is True
    assert world.call("POST", f"/api/v1/jobs/{id}/resume").status_code == 202
    assert world.call("PUT", f"/api/v1/jobs/{id}/workers", json={"count": 3}).status_code == 202
    assert job.board.ahead().values["workers"] == 3
    assert world.call("POST", f"/api/v1/jobs/{id}/checkpoints").status_code == 202
    assert [c["name"] for c in world.call("GET", f"/api/v1/jobs/{id}/checkpoints").json()] == ["checkpoint_000000"]
    assert world.call("DELETE", f"/api/v1/jobs/{id}").status_code == 409
    assert (
        world.call("POST", f"/api/v1/jobs/{id}/stop", json={"reason": "enough", "force_after_s": 5}).status_code == 202
    )
    assert job.stopped == ("admin stopped it: enough", 5.0)
    world.runtime.enter(id, "STOPPED", "enough")
    until(lambda: world.job(id)["state"] == "STOPPED")
    assert world.job(id)["ended_at"] is not None
    for method, path, body in (("PATCH", "knobs", {"values": {"delta": 1}}), ("PUT", "workers", {"count": 2})):
        assert world.call(method, f"/api/v1/jobs/{id}/{path}", json=body).json()["type"] == "urn:raysync:wrong-state"
    assert world.call("POST", f"/api/v1/jobs/{id}/stop").status_code == 202, "stopping twice does no harm"
    assert world.call("DELETE", f"/api/v1/jobs/{id}").status_code == 204
    assert world.call("GET", f"/api/v1/jobs/{id}").status_code == 404


def test_a_job_that_does_not_run_says_so(world: World) -> None:
    world.runtime.lose_cluster()
    id = world.submit()
    answer = world.call("POST", f"/api/v1/jobs/{id}/checkpoints")
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:raysync:not-running")
    assert answer.headers["retry-after"] == "1"
    assert world.call("POST", f"/api/v1/jobs/{id}/stop").status_code == 202
    until(lambda: world.job(id)["state"] == "STOPPED")
    assert "before it started" in world.job(id)["reason"]
    answer = world.call("GET", f"/api/v1/jobs/{id}/checkpoints")
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:raysync:ray-unreachable")


def test_metrics_come_in_pages_and_thinned(world: World) -> None:
    id = world.finished(num_metrics=50)
    path = f"/api/v1/jobs/{id}/metrics"
    page = world.call("GET", path, params={"limit": 20}).json()
    assert [event["step"] for event in page["items"]] == list(range(20))
    rest = world.call("GET", path, params={"after": page["next_after"], "limit": 1000}).json()
    assert [event["step"] for event in rest["items"]] == list(range(20, 50))
    assert (rest["next_after"], rest["has_more"]) == (world.job(id)["last_sequence"], False)
    points = world.call("GET", path, params={"points": 10}).json()["items"]
    assert 9 <= len(points) <= 12
    assert (points[0]["step"], points[-1]["step"]) == (0, 49)


def test_a_stream_of_an_ended_job_is_whole_and_ends(world: World) -> None:
    id = world.finished(num_metrics=5)
    text = world.call("GET", f"/api/v1/jobs/{id}/events/stream").text
    assert _numbers(text) == [*range(8), 7], "every number once, and the end carries the last"
    assert text.rstrip().splitlines()[-2:] == [
        "event: end",
        'data: {"state": "SUCCEEDED", "reason": "the test says so", "last_sequence": 7}',
    ]
    rest = world.call("GET", f"/api/v1/jobs/{id}/events/stream", headers={"Last-Event-ID": "5"}).text
    assert _numbers(rest) == [6, 7, 7]
    metrics = world.call("GET", f"/api/v1/jobs/{id}/metrics/stream", headers={"Last-Event-ID": "3"}).text
    assert _numbers(metrics) == [4, 5, 6, 7]
    assert metrics.count("event: metrics") == 3
    assert world.call("GET", f"/api/v1/jobs/{id}/events/stream", headers={"Last-Event-ID": "x"}).status_code == 422


def test_logs_are_shown_and_streamed(world: World) -> None:
    id = world.finished()
    lines = world.call("GET", f"/api/v1/jobs/{id}/logs").text.splitlines()
    assert [line.split(" | ")[1] for line in lines] == ["one", "two"]
    only = world.call("GET", f"/api/v1/jobs/{id}/logs", params={"actor": "worker/1"}).text
    assert "two" in only
    assert "one" not in only
    stream = world.call("GET", f"/api/v1/jobs/{id}/logs/stream").text
    assert "worker/0 | one" in stream
    assert "event: end" in stream


def _numbers(text: str) -> list[int]:
    return [int(line.removeprefix("id: ")) for line in text.splitlines() if line.startswith("id: ")]


def test_components_are_those_of_the_unions(world: World) -> None:
    found = world.call("GET", "/api/v1/components").json()
    kinds = {family: {member["kind"] for member in members} for family, members in found["families"].items()}
    assert {"bsp", "selsync", "ssp", "fedavg", "local_sgd", "diloco"} <= kinds["strategies"]
    assert {"onebit", "topk"} <= kinds["codecs"]
    assert all(member["schema"]["properties"] for members in found["families"].values() for member in members)
    assert found["knobs"]["delta"] == "strategy.delta"


def test_health_needs_no_token_and_readiness_tells_why_not(world: World) -> None:
    assert world.call("GET", "/healthz", role=None).json()["status"] == "ok"
    assert world.call("GET", "/api/v1/readyz", role=None).json()["ready"] is True
    world.runtime.lose_cluster()
    answer = world.call("GET", "/readyz", role=None)
    assert (answer.status_code, answer.json()["ray"]) == (503, "no cluster answers; the service's log says why")


def test_prometheus_sees_jobs_and_requests(world: World) -> None:
    id = world.running()
    world.runtime.tell(id, "metrics", {"sync/lssr": 0.75, "comm/bytes_up": 1000.0, "sync/rounds": 3.0}, step=4)
    until(lambda: world.job(id)["step"] == 4)
    text = world.call("GET", "/metrics").text
    assert 'raysync_jobs{state="RUNNING"} 1.0' in text
    assert f'raysync_lssr_ratio{{job="{id}",strategy="selsync"}} 0.75' in text
    assert f'raysync_payload_bytes_total{{direction="up",job="{id}",strategy="selsync"}} 1000.0' in text
    assert 'raysync_http_request_seconds_count{method="GET",route="/jobs/{id}",status="200"}' in text
    world.runtime.enter(id, "SUCCEEDED")
    until(lambda: world.job(id)["is_terminal"])
    assert id not in world.call("GET", "/metrics").text, "series of ended jobs go away"

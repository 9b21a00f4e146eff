"""Lists of jobs and what stands around them: filters, sorting, who asks, dry runs, HEAD, packages, actors."""

from __future__ import annotations

from typing import Any

import pytest

from raysync.events import ActorStarted
from service.http.actors import actors_of
from service.store import Store
from service.store.job_filter import SORTS, JobFilter, value_of
from tests.service.conftest import SPEC, World, until
from tests.service.test_packages import GOOD
from tests.service.test_store import books, postgres, row

__all__ = ["books", "postgres"]


def entered(store: Store) -> None:
    """Enter some jobs."""
    for n, (name, owner, state, labels) in enumerate(
        [
            ("digits", "anna", "RUNNING", {"team": "vision", "run": "1"}),
            ("digits", "ben", "SUCCEEDED", {"team": "vision"}),
            ("gpt_small", "anna", "FAILED", {"team": "text", "%": "_"}),
            ("gpt-large", "anna", "PENDING", {}),
        ]
    ):
        ended_s = 50.0 - n if state in ("SUCCEEDED", "FAILED") else None
        fields: dict[str, Any] = {"state": state, "labels": labels, "ended_s": ended_s, "step": 10 * n}
        store.jobs.add(row(f"{name}-{n}a2b3c4d", name=name, owner=owner, created_s=1000.0 + n, **fields))


WANTED: list[tuple[JobFilter, str]] = [
    (JobFilter(), "3210"),
    (JobFilter(states=("RUNNING", "FAILED")), "20"),
    (JobFilter(is_live=True), "30"),
    (JobFilter(is_live=False), "21"),
    (JobFilter(owner="anna"), "320"),
    (JobFilter(owner="anna", is_live=False), "2"),
    (JobFilter(name="GPT"), "32"),
    (JobFilter(name="gpt_"), "2"),
    (JobFilter(name="%"), ""),
    (JobFilter(name="1a2b"), "1"),
    (JobFilter(labels=[("team", "vision")]), "10"),
    (JobFilter(labels=[("team", "vision"), ("run", None)]), "0"),
    (JobFilter(labels=[("team", None)]), "210"),
    (JobFilter(labels=[("%", "_")]), "2"),
    (JobFilter(labels=[("nothing", None)]), ""),
    (JobFilter(ids=["digits-0a2b3c4d", "no-such"]), "0"),
    (JobFilter(ids=[]), ""),
    (JobFilter(prefix="digits-"), "10"),
    (JobFilter(prefix="3a2"), "3"),
    (JobFilter(prefix="gpt_small-2"), "2"),
    (JobFilter(prefix="gptxsmall"), ""),
]


def test_filters_and_orders_on_both_databases(books: Store) -> None:
    entered(books)

    def numbers(jobs: list[Any]) -> str:
        return "".join(job.id.rpartition("-")[2][0] for job in jobs)

    for which, expected in WANTED:
        found = books.jobs.page(10, None, which)
        assert numbers(found) == expected, which
        if which.name is None and which.prefix is None:
            assert numbers([job for job in books.jobs.page(10) if which.holds(job)]) == expected, which
    for sort in (*SORTS, *(f"-{name}" for name in SORTS)):
        whole, pages, after = books.jobs.page(10, sort=sort), [], None
        while page := books.jobs.page(1, after, sort=sort):
            pages += page
            after = (value_of(page[-1], sort), page[-1].id)
        assert numbers(pages) == numbers(whole), sort
        values = [value_of(job, sort) for job in whole]
        assert values == sorted(values, reverse=sort.startswith("-")), sort


def test_labels_of_jobs_from_before_they_were_kept(books: Store) -> None:
    import sqlalchemy as sa

    from service.store.tables import metadata

    with books.database.write() as connection:
        connection.execute(sa.text("DROP TABLE blocks"))
        connection.execute(sa.text("DROP TABLE labels"))
        connection.execute(sa.text("DROP INDEX jobs_by_owner"))
        for column in ("labels", "rolled"):
            connection.execute(sa.text(f"ALTER TABLE jobs DROP COLUMN {column}"))
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '0004'"))
        old = {
            **{column.name: 0 for column in metadata.tables["jobs"].c if not column.nullable},
            **dict.fromkeys(("metrics", "knobs", "runs", "totals"), "{}"),
            "id": "old-1",
            "spec": '{"name":"old","labels":{"team":"vision"}}',
            "pip": "[]",
            "state": "FAILED",
        }
        values = {name: value for name, value in old.items() if name not in ("labels", "rolled")}
        columns, marks = ", ".join(values), ", ".join(f":{name}" for name in values)
        values |= {name: str(values[name]) for name in ("name", "owner", "reason", "headline", "strategy", "path")}
        values |= {"on_cluster_loss": "fail"}
        connection.execute(sa.text(f"INSERT INTO jobs ({columns}) VALUES ({marks})"), values)
    books.database.migrate()
    (found,) = books.jobs.page(5, which=JobFilter(labels=[("team", "vision")]))
    assert (found.id, found.labels, found.rolled) == ("old-1", {"team": "vision"}, 0)


def listed(world: World, query: str) -> list[str]:
    answer = world.call("GET", f"/api/v1/jobs?{query}", "viewer")
    assert answer.status_code == 200, answer.text
    return [job["id"] for job in answer.json()["items"]]


def test_the_list_of_jobs_is_filtered_sorted_and_paged(world: World) -> None:
    ended, live = world.finished(), world.running(spec={"name": "other", "labels": {"team": "vision", "a:b": "x"}})
    assert listed(world, "live=true") == [live]
    assert listed(world, "live=false") == listed(world, "state=SUCCEEDED,FAILED") == [ended]
    assert listed(world, "state=RUNNING,SUCCEEDED") == listed(world, "owner=admin") == [live, ended]
    assert listed(world, "owner=nobody") == []
    assert listed(world, "name=OTH") == listed(world, "label=team:vision") == listed(world, "label=team") == [live]
    assert listed(world, f"ids={ended}") == listed(world, f"prefix={ended[:-3]}") == [ended]
    assert listed(world, f"prefix={live.rpartition('-')[2][:4]}") == [live]
    assert listed(world, "sort=created") == [ended, live]
    page = world.call("GET", "/api/v1/jobs?sort=-name&limit=1").json()
    assert [job["name"] for job in page["items"]] == ["still"]
    assert listed(world, f"sort=-name&limit=1&cursor={page['next_cursor']}") == [live]
    other = world.call("GET", f"/api/v1/jobs?sort=name&cursor={page['next_cursor']}")
    assert (other.status_code, "same `sort`" in other.json()["detail"]) == (422, True)
    assert world.job(live)["labels"] == {"team": "vision", "a:b": "x"}
    for query, field in (("state=BUSY", "state"), ("sort=size", "sort"), ("live=maybe", "live"), ("lable=x", "lable")):
        answer = world.call("GET", f"/api/v1/jobs?{query}")
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, f"query.{field}")


@pytest.mark.parametrize(
    ("role", "can"), [("viewer", ["look"]), ("operator", ["look", "steer"]), ("admin", ["look", "steer", "remove"])]
)
def test_me_says_who_asks_and_what_that_is_good_for(role: str, can: list[str], world: World) -> None:
    found = world.call("GET", "/api/v1/me", role).json()
    assert (found["name"], found["role"], found["can"], found["expires_at"]) == (role, role, can, None)
    assert found["token"] == world.tokens[role].split("_")[1]


def test_a_dry_run_checks_and_enters_nothing(world: World) -> None:
    answer = world.call("POST", "/api/v1/jobs", json={"spec": {**SPEC, "labels": {"a": "b"}}, "dry_run": True})
    found = answer.json()
    assert (answer.status_code, found["dry_run"], found["labels"]) == (200, True, {"a": "b"})
    assert found["spec"]["optimizer"]["kind"], "with its defaults"
    assert found["knobs"]["delta"] == 0.3
    wrong = {"spec": {**SPEC, "strategy": {"kind": "selsync", "dleta": 1}}, "dry_run": True}
    answer = world.call("POST", "/api/v1/jobs", json=wrong)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "spec.strategy.dleta")
    key = {"Idempotency-Key": "once"}
    assert world.call("POST", "/api/v1/jobs", json={"spec": SPEC, "dry_run": True}, headers=key).status_code == 200
    assert listed(world, "limit=5") == []
    assert world.call("POST", "/api/v1/jobs", json={"spec": SPEC}, headers=key).status_code == 201, "it used up no key"
    assert world.call("POST", "/api/v1/jobs", "viewer", json={"spec": SPEC, "dry_run": True}).status_code == 403


def test_head_is_answered_as_get_without_a_body(world: World) -> None:
    id = world.finished()
    for path in ("/api/v1/jobs", f"/api/v1/jobs/{id}", "/healthz", f"/api/v1/jobs/{id}/events/stream"):
        get, head = world.call("GET", path), world.call("HEAD", path)
        assert (head.status_code, head.content) == (get.status_code, b""), path
        assert head.headers.get("content-length") == get.headers.get("content-length")
        assert head.headers["content-type"] == get.headers["content-type"]
    assert world.call("HEAD", "/api/v1/jobs/no-such-job").status_code == 404
    assert world.call("HEAD", "/api/v1/jobs", role=None).status_code == 401
    assert world.call("HEAD", f"/api/v1/jobs/{id}/stop").status_code == 405
    assert world.call("POST", f"/api/v1/jobs/{id}").headers["allow"] == "DELETE, GET, HEAD"


def test_a_package_can_be_looked_at(world: World) -> None:
    sent = world.call("POST", "/api/v1/packages", content=GOOD, headers={"Content-Type": "application/zip"}).json()
    found = world.call("GET", f"/api/v1/packages/{sent['id']}", "viewer").json()
    assert found == sent
    assert (found["owner"], found["size_bytes"]) == ("admin", len(GOOD))


def test_operation_ids_are_plain_names_and_stay(world: World) -> None:
    paths = world.call("GET", "/openapi.json").json()["paths"]
    ids = [operation["operationId"] for methods in paths.values() for operation in methods.values()]
    assert len(ids) == len({*ids})
    assert {"list_jobs", "show_job", "submit_job", "turn_knobs", "list_series", "stream_all", "show_me"} <= {*ids}
    assert all(id.isidentifier() and id.islower() for id in ids)


def test_the_document_says_what_every_kind_of_event_holds(world: World) -> None:
    document = world.call("GET", "/openapi.json").json()
    schemas = document["components"]["schemas"]
    assert "scores" in schemas["DecisionData"]["properties"]
    cases = document["paths"]["/api/v1/stream"]["get"]["responses"]["200"]["content"]["text/event-stream"]["schema"]
    kinds = {
        case["properties"]["event"]["const"]: case["properties"]["data"]["contentSchema"] for case in cases["oneOf"]
    }
    assert kinds["events"]["items"]["$ref"] == "#/components/schemas/EventPublic"
    assert {"jobs", "removed", "studies", "trials", "gap", "end"} <= kinds.keys()


def test_a_job_shows_its_actors(world: World) -> None:
    id = world.running()
    for pid in (11, 12):
        world.runtime.tell(id, "actor", {"name": "worker/1", "link": "tcp", "node": "n1", "node_id": "x", "pid": pid})
    until(lambda: world.job(id)["last_sequence"] >= 3)
    (worker,) = world.job(id)["actors"]
    assert (worker["name"], worker["node"], worker["pid"], worker["restarts"]) == ("worker/1", "n1", 12, 1)


def test_the_table_of_actors_has_what_each_said_last() -> None:
    facts = {"node": "n2", "pid": 12, "life": "alive", "device": "cpu", "torch_threads": 1, "step_s": 0.02}
    actors = {"worker/10": {}, "worker/2": facts, "coordinator": {"life": "alive"}, "stage/1/0": {"life": "dead"}}
    starts = {name: [ActorStarted(name, None, "n1", "x", 7)] for name in ("worker/2", "shard/0")}
    found = {actor.name: actor for actor in actors_of(row(runs={"link": "tcp", "actors": actors}), starts)}
    assert list(found) == ["coordinator", "shard/0", "stage/1/0", "worker/2", "worker/10"]
    worker = found["worker/2"]
    assert (worker.node, worker.device, worker.restarts, worker.steps_per_s) == ("n2", "cpu", 0, 50.0)
    assert (found["stage/1/0"].stage, found["stage/1/0"].index, found["stage/1/0"].life) == (1, 0, "dead")
    assert found["coordinator"].index is None
    assert (found["shard/0"].node, found["shard/0"].pid, found["shard/0"].life) == ("n1", 7, None), "where it was"

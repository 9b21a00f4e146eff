"""What jobs tell, as the service shows it: Prometheus, the catalogue and OpenAPI read the registry and the union."""

from __future__ import annotations

import re
from typing import Any

import pytest

from raysync.events import BY_KIND, Event, Metrics
from raysync.metrics import METRICS, TOLD, Metric
from service.cli.progress import ProgressLine
from service.jobs.projection import projected
from tests.service.conftest import World, until
from tests.service.test_numbers import row
from tests.service.test_routes import DOCUMENT

SCRAPED = [metric for metric in METRICS if metric.prometheus is not None]


@pytest.fixture
def scraped(world: World) -> tuple[str, str]:
    """A job that has told every metric, and what Prometheus reads."""
    id = world.running()
    world.runtime.tell(id, "metrics", {metric.name: float(n) for n, metric in enumerate(METRICS, 1)}, step=4)
    until(lambda: world.job(id)["step"] == 4)
    return id, world.call("GET", "/metrics").text


def test_every_metric_with_a_prometheus_name_is_scraped(scraped: tuple[str, str]) -> None:
    id, text = scraped
    for number, metric in enumerate(METRICS, 1):
        if metric.prometheus is not None:
            assert _series(id, metric) in text
            assert f"{_series(id, metric)} {float(number)}" in text.splitlines()
    for metric in SCRAPED:
        assert metric.prometheus is not None
        if metric.is_total:
            assert f"# TYPE {metric.prometheus.family.replace('raysync_', 'raysync_all_')}_total counter" in text
        else:
            assert f"# TYPE {metric.prometheus.family} gauge" in text


def test_nothing_is_scraped_of_jobs_that_the_registry_does_not_have(scraped: tuple[str, str]) -> None:
    id, text = scraped
    names = {line.split("{")[0].removesuffix("_total") for line in text.splitlines() if f'job="{id}"' in line}
    known = {metric.prometheus.family for metric in SCRAPED if metric.prometheus is not None}
    assert names - known == {"raysync_steps", "raysync_workers", "raysync_knob_version"}


def _series(id: str, metric: Metric) -> str:
    assert metric.prometheus is not None
    labels = {"job": id, "strategy": "selsync", **metric.prometheus.labels}
    shown = ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()))
    return f"{metric.prometheus.family}{'_total' if metric.is_total else ''}{{{shown}}}"


def test_the_catalogue_lists_metrics_and_events(world: World) -> None:
    found = world.call("GET", "/api/v1/components").json()
    assert [metric["name"] for metric in found["metrics"]] == [metric.name for metric in TOLD]
    assert {metric["unit"] for metric in found["metrics"] if metric["name"].startswith("comm/bytes")} == {"bytes"}
    assert [event["kind"] for event in found["events"]] == [*BY_KIND]
    assert not re.search(r"\$ref", str(found["events"])), "each schema is whole in itself"


def test_the_document_says_what_each_kind_holds() -> None:
    schemas: dict[str, Any] = DOCUMENT["components"]["schemas"]
    cases = {case["properties"]["kind"].get("const"): case for case in schemas["EventPublic"]["oneOf"]}
    assert {*cases} == {*BY_KIND, None}
    for kind, body in BY_KIND.items():
        data = schemas[cases[kind]["properties"]["data"]["$ref"].rpartition("/")[2]]
        assert cases[kind]["description"].endswith(".")
        if body is not Metrics:
            assert {*data["properties"]} == {*body.__struct_fields__}
    assert schemas["MetricsData"]["properties"]["train/loss"]["description"] == "Last training loss."


def test_what_is_unknown_here_is_kept_and_changes_nothing(world: World) -> None:
    id = world.running()
    world.runtime.tell(id, "merger", {"with": "job-2"}, step=3)
    world.runtime.tell(id, "state", {"state": "DREAMING", "reason": "of a later version"}, step=4)
    world.runtime.tell(id, "metrics", {"train/loss": 1.0, "data/depth": 3.0}, step=5)
    until(lambda: world.job(id)["step"] == 5)
    job = world.job(id)
    assert (job["state"], job["metrics"]["data/depth"]) == ("RUNNING", 3.0)
    events = world.call("GET", f"/api/v1/jobs/{id}/events").json()["items"]
    assert [(event["kind"], event["data"]) for event in events if event["step"] == 3] == [("merger", {"with": "job-2"})]
    unknown = Event(sequence=0, kind="merger", step=9, data={})
    assert projected(row(), [unknown], 0.0) == {"step": 9}
    ProgressLine("digits", 10).show(unknown.body, 9)

"""What every metric owes, read from the registry, and what runs may tell: nothing the registry and the union lack."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import Any

import pytest

from actors.shell.stopwatch import Stopwatch
from raysync.engine import messages as m
from raysync.events import Event, Metrics
from raysync.metrics import METRICS, TOLD, Metric, Prometheus, is_evaluation
from raysync.sim import Fault, Pace, Simulation
from tests.jobs import EVERY, job, workload

UNITS = {"_s": "s", "_per_s": "samples/s", "_bytes": "bytes"}
"""What the end of a name says of its unit; the longest that fits counts."""


NAMES = {metric.name for metric in TOLD}


def events_of(strategy: dict[str, Any]) -> list[Event]:
    """Return all a short run tells: it is compressed, takes checkpoints, loses a worker and turns a knob."""
    spec = job(
        strategy,
        compression={"push": {"kind": "topk", "ratio": 0.2}},
        checkpoint={"every_rounds": 2},
        scale={"workers": 3, "shards": 2},
    )
    fault = Fault(action="kill", where="worker.computed", nth=20)
    simulation = Simulation(spec, workload=workload(spec), pace=Pace(jitter=0.3), faults=(fault,))
    simulation.after(0.1, lambda: simulation.tell(m.Turn(changes={"lr": 0.04})))
    simulation.run()
    return simulation.ledger.events


@pytest.mark.parametrize("name", EVERY)
def test_what_a_run_tells_is_in_the_registry_and_in_the_union(name: str) -> None:
    events = events_of(EVERY[name])
    assert {"metrics", "view", "knobs"} <= {event.kind for event in events}
    assert [event for event in events if event.body is None or event.body.data != event.data] == []
    names = {name for event in events if isinstance(event.body, Metrics) for name in event.body.values}
    assert {"train/loss", "comm/bytes_up", "eval/distance"} <= names
    assert {name for name in names if not is_evaluation(name)} <= NAMES


def test_what_the_stopwatch_measures_is_in_the_registry() -> None:
    watch = Stopwatch()
    watch.begin()
    for point in ("computed", "reported", "decided", "encoding", "encoded", "synced"):
        watch(f"worker.{point}")
    measured = watch.measured()
    assert len(measured) == 4
    assert measured.keys() <= NAMES


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_says_what_it_is(metric: Metric) -> None:
    assert metric.text.endswith(".")
    assert metric.name.count("/") == 1
    ends = [end for end in UNITS if metric.name.endswith(end)]
    assert not ends or metric.unit == UNITS[max(ends, key=len)]
    if metric.prometheus is not None:
        assert metric.is_told, "what is not told cannot be scraped"
        assert metric.prometheus.family.startswith("raysync_")
        assert bool(metric.prometheus.of_all) == metric.is_total, "a running total is counted over all jobs"
    if metric.short is not None and metric.unit != "bytes":
        assert metric.short.form.format(1.0)


def test_names_are_given_once_and_a_family_is_of_one_kind() -> None:
    assert max(Counter(metric.name for metric in METRICS).values()) == 1

    def family(metric: Metric) -> str:
        assert isinstance(metric.prometheus, Prometheus)
        return metric.prometheus.family

    scraped = sorted((metric for metric in TOLD if metric.prometheus is not None), key=family)
    for name, found in groupby(scraped, family):
        members = list(found)
        labels = [metric.prometheus.labels for metric in members if metric.prometheus is not None]
        assert len({metric.is_total for metric in members}) == 1, name
        assert len({(*label,) for label in labels}) == 1, name
        assert len({(*label.values(),) for label in labels}) == len(members), name

"""What Prometheus is told of jobs: a family for every metric that has a name there, of each live job and of all."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Series

from raysync.control.states import JobState
from raysync.metrics import TOLD, Combine, Metric, Prometheus
from service.store import JobRow
from service.store.totals import ENDED, STEPS, Overview, totals_of

_LABELS = ["job", "strategy"]
_STEPS = Metric(
    name=STEPS,
    unit="steps",
    combine=Combine.JOB,
    text="Training steps.",
    is_total=True,
    prometheus=Prometheus("raysync_steps", of_all="Training steps of all jobs there ever were."),
)
"""Not told as a metric: each event carries its step."""


class _Family(NamedTuple):
    """Metrics that Prometheus has under one name, told apart by a label of their own."""

    prometheus: Prometheus
    help: str
    metrics: list[Metric]

    @property
    def labels(self) -> list[str]:
        return [*self.prometheus.labels]

    @property
    def is_total(self) -> bool:
        return self.metrics[0].is_total


def _families() -> list[_Family]:
    found: dict[str, _Family] = {}
    for metric in (*TOLD, _STEPS):
        if (prometheus := metric.prometheus) is not None:
            new = _Family(prometheus, prometheus.help or metric.text, [])
            found.setdefault(prometheus.family, new).metrics.append(metric)
    return list(found.values())


_FAMILIES = _families()


def of_all(overview: Overview) -> Iterable[Series]:
    """Yield what only grows, over restarts of the service and the removal of jobs."""
    sums = collections.Counter(overview.ended)
    for row in overview.live:
        sums.update({(name, row.strategy): value for name, value in totals_of(row).items()})
    for family in _FAMILIES:
        if not family.is_total:
            continue
        name = family.prometheus.family.replace("raysync_", "raysync_all_", 1)
        total = CounterMetricFamily(name, family.prometheus.of_all, labels=["strategy", *family.labels])
        for metric in family.metrics:
            for (found, strategy), value in sorted(sums.items()):
                if found == metric.name:
                    total.add_metric([strategy, *_own_labels(metric)], value)
        yield total
    ended = CounterMetricFamily("raysync_ended_jobs", "Jobs that have ended, by how.", labels=["state"])
    for state in JobState:
        if state.is_terminal:
            ended.add_metric([state.value], overview.ended.get((ENDED, state.value), 0.0))
    yield ended


def of_each(rows: list[JobRow]) -> Iterable[Series]:
    """Yield what live jobs told last, and what they have come to so far."""
    totals = {row.id: totals_of(row) for row in rows}
    for family in _FAMILIES:
        kind = CounterMetricFamily if family.is_total else GaugeMetricFamily
        told = kind(family.prometheus.family, family.help, labels=[*_LABELS, *family.labels])
        for row in rows:
            values = totals[row.id] if family.is_total else row.metrics
            for metric in family.metrics:
                value = values.get(metric.name)
                if value is not None or family.prometheus.from_start:
                    told.add_metric([row.id, row.strategy, *_own_labels(metric)], value or 0.0)
        yield told
    workers = GaugeMetricFamily("raysync_workers", "Workers that train.", labels=_LABELS)
    versions = GaugeMetricFamily("raysync_knob_version", "How often knobs were turned.", labels=_LABELS)
    for row in rows:
        workers.add_metric([row.id, row.strategy], row.workers)
        versions.add_metric([row.id, row.strategy], row.knob_version)
    yield from (workers, versions)


def _own_labels(metric: Metric) -> list[str]:
    return [*metric.prometheus.labels.values()] if metric.prometheus is not None else []

"""What Prometheus scrapes: how requests go, and how every live job goes, as the books have it."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from raysync.control.states import JobState
from service.errors import DatabaseUnavailable
from service.http.job_series import of_all, of_each
from service.jobs.feed import Feeds
from service.runtime.port import AsyncRuntime
from service.store import Store


class Metrics:
    """The registry of one service."""

    def __init__(self, store: Store, runtime: AsyncRuntime, feeds: Feeds, max_live_jobs: int) -> None:
        self._registry = CollectorRegistry()
        self._requests = Histogram(
            "raysync_http_request_seconds",
            "Time to the end of an answer; streams are not counted.",
            ["method", "route", "status"],
            buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10),
            registry=self._registry,
        )
        self._refused = Counter(
            "raysync_connections_refused",
            "Connections ended before their request was answered: too many, too long headers, too slow.",
            ["why"],
            registry=self._registry,
        )
        self._registry.register(_Jobs(store, runtime, feeds, max_live_jobs))

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(method, route, str(status)).observe(seconds)

    def refused(self, why: str) -> None:
        """Count a connection that was refused or given up."""
        self._refused.labels(why).inc()

    def render(self) -> bytes:
        """Return all metrics as Prometheus reads them."""
        return generate_latest(self._registry)


class _Jobs(Collector):
    """Reads the books at each scrape; series of ended jobs go away, what they came to stays in those of all jobs."""

    def __init__(self, store: Store, runtime: AsyncRuntime, feeds: Feeds, max_live_jobs: int) -> None:
        self._store, self._runtime, self._feeds, self._max_live_jobs = store, runtime, feeds, max_live_jobs

    def collect(self) -> Iterable[Metric]:
        """Yield every family; while the database does not answer, those that need none."""
        ray_up, readers = self._runtime.cluster is not None, self._feeds.num_readers
        yield GaugeMetricFamily("raysync_ray_up", "Whether the Ray cluster answers.", value=float(ray_up))
        yield GaugeMetricFamily("raysync_stream_readers", "Open event streams.", value=float(readers))
        limit = float(self._max_live_jobs)
        yield GaugeMetricFamily("raysync_max_live_jobs", "How many jobs are started at once.", value=limit)
        try:
            overview, num_queued = self._store.totals.overview(), self._store.queue.count()
        except DatabaseUnavailable:
            yield GaugeMetricFamily("raysync_database_up", "Whether the database answers.", value=0.0)
            return
        yield GaugeMetricFamily("raysync_database_up", "Whether the database answers.", value=1.0)
        yield GaugeMetricFamily("raysync_queued_jobs", "Jobs that wait in line.", value=float(num_queued))
        states = GaugeMetricFamily("raysync_jobs", "Jobs by state.", labels=["state"])
        for state in JobState:
            states.add_metric([state.value], overview.by_state.get(state.value, 0))
        yield states
        yield from of_all(overview)
        yield from of_each(overview.live)

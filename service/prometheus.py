"""What Prometheus scrapes: how requests go, and how every live job goes, as the books have it."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from raysync.control.states import JobState
from service.feed import Feeds
from service.runtime import Runtime
from service.store import JobRow, Store

_GAUGES = {
    "raysync_lssr_ratio": ("sync/lssr", "Share of steps without synchronisation."),
    "raysync_staleness_max_steps": ("staleness/max", "Largest staleness of a read, in steps."),
    "raysync_staleness_mean_steps": ("staleness/mean", "Mean staleness of reads, in steps."),
    "raysync_grad_delta": ("sync/grad_delta", "What SelSync compares with its threshold."),
    "raysync_train_loss": ("train/loss", "Last training loss."),
    "raysync_eval_loss": ("eval/loss", "Last evaluation loss."),
    "raysync_eval_accuracy_ratio": ("eval/accuracy", "Last evaluation accuracy."),
    "raysync_samples_per_second": ("train/samples_per_s", "Training samples per second."),
    "raysync_compression_ratio": ("comm/compression", "Dense bytes over bytes sent."),
    "raysync_residual_norm": ("feedback/residual_norm", "Norm of what error feedback holds back."),
}
_COUNTERS = {"raysync_sync_rounds": ("sync/rounds", "Synchronisations.")}
_BYTES = {"up": "comm/bytes_up", "down": "comm/bytes_down"}
_LABELS = ["job", "strategy"]


class Metrics:
    """The registry of one service."""

    def __init__(self, store: Store, runtime: Runtime, feeds: Feeds) -> None:
        self._registry = CollectorRegistry()
        self._requests = Histogram(
            "raysync_http_request_seconds",
            "Time to the end of an answer; streams are not counted.",
            ["method", "route", "status"],
            buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10),
            registry=self._registry,
        )
        self._registry.register(_Jobs(store, runtime, feeds))

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(method, route, str(status)).observe(seconds)

    def render(self) -> bytes:
        """Return all metrics as Prometheus reads them."""
        return generate_latest(self._registry)


class _Jobs(Collector):
    """Reads the books at each scrape; series of ended jobs go away."""

    def __init__(self, store: Store, runtime: Runtime, feeds: Feeds) -> None:
        self._store, self._runtime, self._feeds = store, runtime, feeds

    def collect(self) -> Iterable[Metric]:
        """Yield every family."""
        states = GaugeMetricFamily("raysync_jobs", "Jobs by state.", labels=["state"])
        counts = self._store.jobs.count_by_state()
        for state in JobState:
            states.add_metric([state.value], counts.get(state.value, 0))
        yield states
        yield GaugeMetricFamily(
            "raysync_ray_up", "Whether the Ray cluster answers.", value=float(self._runtime.cluster is not None)
        )
        yield GaugeMetricFamily("raysync_stream_readers", "Open event streams.", value=float(self._feeds.num_readers))
        yield from self._of(self._store.jobs.live())

    def _of(self, rows: list[JobRow]) -> Iterable[Metric]:
        for name, (metric, text) in _GAUGES.items():
            yield _filled(GaugeMetricFamily(name, text, labels=_LABELS), rows, metric)
        for name, (metric, text) in _COUNTERS.items():
            yield _filled(CounterMetricFamily(name, text, labels=_LABELS), rows, metric)
        sent = CounterMetricFamily("raysync_payload_bytes", "Payload sent.", labels=[*_LABELS, "direction"])
        steps = CounterMetricFamily("raysync_steps", "Training steps.", labels=_LABELS)
        workers = GaugeMetricFamily("raysync_workers", "Workers that train.", labels=_LABELS)
        versions = GaugeMetricFamily("raysync_knob_version", "How often knobs were turned.", labels=_LABELS)
        for row in rows:
            for direction, metric in _BYTES.items():
                sent.add_metric([row.id, row.strategy, direction], row.metrics.get(metric) or 0.0)
            steps.add_metric([row.id, row.strategy], row.step)
            workers.add_metric([row.id, row.strategy], row.workers)
            versions.add_metric([row.id, row.strategy], row.knob_version)
        yield from (sent, steps, workers, versions)


def _filled(family: Metric, rows: list[JobRow], metric: str) -> Metric:
    for row in rows:
        value = row.metrics.get(metric)
        if value is not None:
            family.add_metric([row.id, row.strategy], value)  # type: ignore[attr-defined]
    return family

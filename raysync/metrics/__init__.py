"""The registry of metrics: the coordinator combines workers' values by it; history, Prometheus, progress lines, OpenAPI
and the catalogue read from it what they show.

A new metric is one entry in `registry.py` and a line where it is measured.
"""

from raysync.metrics.metric import Combine, Metric, Prometheus, Short
from raysync.metrics.registry import METRICS, TOLD, is_evaluation, metrics_of

__all__ = ["METRICS", "TOLD", "Combine", "Metric", "Prometheus", "Short", "is_evaluation", "metrics_of"]

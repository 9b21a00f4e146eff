"""What a metric is: how workers' values become the job's, and how it is shown."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Combine(StrEnum):
    """How the values of a step's reports become the job's."""

    WEIGHTED = "weighted"
    """their mean, weighted by the samples of each report"""
    MEAN = "mean"
    """their mean, over the reports that have one"""
    SUM = "sum"
    """their sum"""
    MAX = "max"
    """the largest"""
    TOTAL = "total"
    """the sum of the last running total of every worker there ever was"""
    NORM = "norm"
    """the root of the sum of squares, over the last value of every worker that is in"""
    EVALUATION = "evaluation"
    """the mean over the evaluation data, whoever judged which part of it"""
    JOB = "job"
    """workers do not report it: the coordinator works it out"""


class Short(msgspec.Struct, frozen=True):
    """A metric in few characters; bytes are written with their unit, metrics of one label are added up."""

    label: str = ""
    form: str = "{:.2f}"
    scale: float = 1.0


class Prometheus(msgspec.Struct, frozen=True):
    """A metric as Prometheus has it: a counter if it is a running total, else a gauge."""

    family: str
    help: str = ""
    """Of the family; the metric's own sentence by default."""
    of_all: str = ""
    """Of the counter over all jobs there ever were, which each running total has."""
    labels: dict[str, str] = {}
    """What tells it from the other metrics of its family."""
    from_start: bool = False
    """A job that has not told it yet has a zero."""


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One metric."""

    name: str
    unit: str = ""
    combine: Combine
    text: str
    """What it is, in one sentence."""
    is_total: bool = False
    """It only grows; a job that goes back to a checkpoint counts from there again, its totals go on."""
    is_told: bool = True
    """False for what workers report only so that the coordinator can make another metric of it."""
    by_stage: bool = False
    """Told for every stage of the pipelines as well, as NAME/0, NAME/1 and so on."""
    prometheus: Prometheus | None = None
    short: Short | None = None

    def at_stage(self, stage: int) -> Metric:
        """Return the metric of one stage: over its replicas."""
        return Metric(name=f"{self.name}/{stage}", unit=self.unit, combine=self.combine, text=self.text)

"""From the reports of workers to one value for each metric, as the registry says; what no report has is left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from raysync.address import Address, by_address, by_text
from raysync.engine.messages import Judgement
from raysync.metrics import METRICS, Combine, Metric

_RULES: dict[Combine, Callable[[list[float]], float]] = {
    Combine.MEAN: lambda values: sum(values) / len(values),
    Combine.SUM: sum,
    Combine.MAX: max,
}
_SAMPLES = "train/samples"
_PUTS = 64
"""After so many numbers at least sums are made anew, and after one of every worker."""
_NORMS = frozenset(metric.name for metric in METRICS if metric.combine is Combine.NORM)


class StepValues:
    """Combines what is told of one step, whatever was told before."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._rules = [(metric.name, _RULES[metric.combine]) for metric in metrics if metric.combine in _RULES]
        self._weighted = [metric.name for metric in metrics if metric.combine is Combine.WEIGHTED]

    def combined(self, told: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Return the values."""
        found: dict[str, float] = {}
        present = {*()}.union(*told)
        for name in self._weighted:
            if name in present:
                found |= _weighted(name, told)
        for name, rule in self._rules:
            if name in present:
                found[name] = rule([metrics[name] for metrics in told if name in metrics])
        return found


def merged(told: Sequence[Mapping[str, float]], metrics: Sequence[Metric] = METRICS) -> dict[str, float]:
    """Return what several cores that stand for one member tell together; what only one of them knows is told by it."""
    rules = {metric.name: _RULES.get(metric.combine) for metric in metrics}
    found: dict[str, float] = {}
    for name in dict.fromkeys(name for values in told for name in values):
        known = [values[name] for values in told if name in values]
        rule = rules.get(name)
        if rule is not None:
            found[name] = rule(known)
        elif name in _NORMS:
            found[name] = math.hypot(*known)
        else:
            found[name] = sum(known)
    return found


def evaluation(parts: Sequence[Judgement]) -> dict[str, float]:
    """Return the metrics over all of the evaluation data, given what came of each part; nothing where one is missing,
    since the worker that was to judge it died or had not heard of the others yet.
    """
    rounds = {(judged.round, judged.parts) for judged in parts}
    if len(rounds) != 1 or sorted(judged.part for judged in parts) != [*range(parts[0].parts)]:
        return {}
    samples = sum(judged.samples for judged in parts)
    found = {"eval/round": float(parts[0].round)} if samples else {}
    for judged in parts:
        for name, value in judged.metrics.items():
            found[name] = found.get(name, 0.0) + value * judged.samples / samples
    return found


class LastValues:
    """Combines the last number of every worker: running totals, and squares of norms, at a cost for each report that
    does not grow with the workers. A report that lacks one leaves it as it was.
    """

    def __init__(self, metrics: Sequence[Metric]) -> None:
        kept = (Combine.TOTAL, Combine.NORM)
        self._is_norm = {metric.name: metric.combine is Combine.NORM for metric in metrics if metric.combine in kept}
        self._by_worker: dict[str, dict[Address, float]] = {name: {} for name in self._is_norm}
        self._sums: dict[str, float] = dict.fromkeys(self._is_norm, 0.0)
        self._puts = 0

    def put(self, worker: Address, metrics: Mapping[str, float]) -> None:
        """Take in a worker's numbers; now and then add up anew, so that rounding errors do not."""
        for name, by_worker in self._by_worker.items():
            value = metrics.get(name)
            if value is not None:
                number = value**2 if self._is_norm[name] else value
                self._sums[name] += number - by_worker.get(worker, 0.0)
                by_worker[worker] = number
        self._puts += 1
        if self._puts >= _PUTS and self._puts >= max(map(len, self._by_worker.values())):
            self._puts = 0
            self._sums = {name: math.fsum(by_worker.values()) for name, by_worker in self._by_worker.items()}

    def drop_norms(self, worker: Address) -> dict[str, float]:
        """Forget the norms of a worker that is not in any more; return them."""
        dropped = {}
        for name, is_norm in self._is_norm.items():
            if is_norm and worker in self._by_worker[name]:
                square = self._by_worker[name].pop(worker)
                self._sums[name] -= square
                dropped[name] = math.sqrt(square)
        return dropped

    def combined(self) -> dict[str, float]:
        """Return the totals and norms over all workers."""
        return {
            name: math.sqrt(max(0.0, self._sums[name])) if is_norm else self._sums[name]
            for name, is_norm in self._is_norm.items()
            if self._by_worker[name]
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the numbers."""
        by_worker = {name: by_text(values) for name, values in self._by_worker.items()}
        return {"_by_worker": by_worker, "_sums": dict(self._sums), "_puts": self._puts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the numbers; a metric that was not known then begins anew."""
        self._by_worker |= {name: by_address(values) for name, values in state["_by_worker"].items()}
        self._sums |= state["_sums"]
        self._puts = state["_puts"]


def _weighted(name: str, told: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean weighted by samples, over the reports that have both."""
    pairs = [(metrics[name], metrics[_SAMPLES]) for metrics in told if name in metrics and _SAMPLES in metrics]
    samples = sum(weight for _, weight in pairs)
    return {name: sum(value * weight for value, weight in pairs) / max(1.0, samples)} if pairs else {}

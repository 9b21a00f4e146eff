"""The coordinator's books: how many steps stayed local, what was sent, and the metrics made of a step's reports."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

from raysync.address import Address, by_address, by_text
from raysync.engine import messages as m
from raysync.engine.coordinator.combining import LastValues, StepValues, evaluation
from raysync.engine.pacing import pacing_of
from raysync.metrics import Metric, metrics_of
from raysync.rate import Rate
from raysync.spec import JobSpec
from raysync.sync.base import Choice

_OWN = ("_has_clocks", "_rate", "_untold", "_of_step", "_last", "_last_reads", "_lands_late", "_judged_parts")
"""What belongs to this life of the job and is not saved, or is saved on its own."""


class StepMetrics:
    """Counts decisions and reads, and turns reports into metrics."""

    def __init__(self, spec: JobSpec, registry: Sequence[Metric] | None = None) -> None:
        registry = metrics_of(spec.scale.stages) if registry is None else registry
        self._has_clocks = pacing_of(spec).applies_on_arrival
        self._lands_late = spec.strategy.needs.lands_late
        self._judged_parts: dict[int, list[m.Judgement]] = {}
        """Of rounds that land late, and so at another step on each worker: what came of each part so far."""
        self.last_sync_step = -1
        self.local_steps = self.sync_steps = 0
        self.reads = self.staleness_sum = self.staleness_max = 0
        self.last_score: float | None = None
        self.last_threshold: float | None = None
        self.judged_step = -1
        """Of the last model that the evaluator has judged."""
        self._lost_norms: dict[Address, float] = {}
        self._last_reads: dict[Address, int] = {}
        self._of_step, self._last = StepValues(registry), LastValues(registry)
        self._untold = [metric.name for metric in registry if not metric.is_told]
        self._rate = Rate()

    @property
    def lssr(self) -> float:
        """Local steps as a share of all steps."""
        return self.local_steps / max(1, self.local_steps + self.sync_steps)

    def decided(self, step: int, choice: Choice) -> None:
        """Count a decision."""
        self.last_score, self.last_threshold = choice.score, choice.threshold
        if choice.sync:
            self.sync_steps, self.last_sync_step = self.sync_steps + 1, step
        else:
            self.local_steps += 1

    def resume(self, last: m.Decision) -> None:
        """Go on after a decision that another coordinator made."""
        self.last_sync_step = last.last_sync_step
        self.sync_steps = last.round + 1
        self.local_steps = max(0, last.step + 1 - self.sync_steps)

    def read(self, worker: Address, staleness: int) -> None:
        """Count a worker's read under an asynchronous strategy."""
        self._last_reads[worker] = staleness
        self.reads, self.staleness_sum = self.reads + 1, self.staleness_sum + staleness
        self.staleness_max = max(self.staleness_max, staleness)

    def died(self, worker: Address) -> None:
        """A worker has taken its residual along: as much as it last reported."""
        self._lost_norms[worker] = self._last.drop_norms(worker).get("feedback/residual_norm", 0.0)

    def left(self, worker: Address) -> None:
        """A worker has left and hands its residual over."""
        self._last.drop_norms(worker)

    def came_back(self, worker: Address) -> None:
        """A worker taken for dead is back, with its residual."""
        self._lost_norms.pop(worker, None)

    def metrics(self, reports: Mapping[Address, m.Report], now_s: float) -> dict[str, float]:
        """Return the metrics of a step: what is reported, as the registry combines it, and what follows from that."""
        for worker, report in reports.items():
            self._last.put(worker, report.metrics)
        found = self._of_step.combined([report.metrics for report in reports.values()]) | self._last.combined()
        found |= self._of_job(found, now_s)
        if read := [self._last_reads[worker] for worker in reports if worker in self._last_reads]:
            found["staleness/last"] = float(max(read))
        judged = [report.judged for report in reports.values() if report.judged is not None]
        found |= self._gathered(judged) if self._lands_late else evaluation(judged)
        for name in self._untold:
            found.pop(name, None)
        return found

    def _gathered(self, judged: Sequence[m.Judgement]) -> dict[str, float]:
        """Return the metrics of the newest round of which all parts have been judged by now, once."""
        for part in judged:
            self._judged_parts.setdefault(part.round, []).append(part)
        for round in sorted(self._judged_parts, reverse=True):
            found = evaluation(self._judged_parts[round])
            if found:
                self._judged_parts = {later: told for later, told in self._judged_parts.items() if later > round}
                return found
        return {}

    def judged(self, told: m.Judged) -> dict[str, float]:
        """Return the metrics of a model; nothing if they were told before, or those of a later one."""
        if told.step <= self.judged_step:
            return {}
        self.judged_step = told.step
        return evaluation([told.judgement])

    def _of_job(self, combined: Mapping[str, float], now_s: float) -> dict[str, float]:
        """Return what the coordinator works out itself."""
        found = {"feedback/lost_norm": math.hypot(*self._lost_norms.values())}
        if (dense := combined.get("comm/dense_bytes")) is not None:
            sent = combined.get("comm/bytes_up", 0.0) + combined.get("comm/bytes_down", 0.0)
            found["comm/compression"] = dense / max(1.0, sent)
        rate = self._rate.add(combined.get("train/samples", 0.0), now_s)
        if rate is not None:
            found["train/samples_per_s"] = rate
        if self._has_clocks or self._lands_late:
            found |= {
                "staleness/max": float(self.staleness_max),
                "staleness/mean": self.staleness_sum / max(1, self.reads),
            }
        if not self._has_clocks:
            found |= {"sync/lssr": self.lssr, "sync/rounds": float(self.sync_steps)}
        for name, value in (("sync/grad_delta", self.last_score), ("sync/delta", self.last_threshold)):
            if value is not None and math.isfinite(value):
                found[name] = value
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return the books."""
        own = {name: copy.deepcopy(value) for name, value in vars(self).items() if name not in _OWN}
        return own | {"_lost_norms": by_text(self._lost_norms)} | self._last.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the books."""
        for name in vars(self).keys() - {*_OWN}:
            setattr(self, name, copy.deepcopy(state[name]))
        self._lost_norms = by_address(state["_lost_norms"])
        self._last.load_state_dict(state)

"""The coordinator's books: how many steps stayed local, what was sent, and the metrics made of a step's reports."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

from raysync.engine import messages as m
from raysync.spec import JobSpec
from raysync.sync.base import Choice

_SUMMED = ("comm/bytes_up", "comm/bytes_down", "comm/dense_bytes")
_MEASURED = ("time/", "sync/wait_s")
"""Beginnings of what hosts measure: the mean over the workers is reported."""
_RATE_WINDOW_S = 2.0
_OWN = ("_asynchronous", "_window")
"""What belongs to this life of the job and is not saved."""


class Tally:
    """Counts decisions and reads, and turns reports into metrics."""

    def __init__(self, spec: JobSpec) -> None:
        self._asynchronous = spec.strategy.asynchronous
        self.last_sync_step = -1
        self.local_steps = self.sync_steps = 0
        self.reads = self.staleness_sum = self.staleness_max = 0
        self.last_score: float | None = None
        self._residual_norms: dict[int, float] = {}
        self._lost_norms: dict[int, float] = {}
        self._sums: dict[str, dict[int, float]] = {name: {} for name in _SUMMED}
        self._window: list[float] = [-1.0, 0.0, 0.0]
        """Since when samples are counted for the rate, how many, and the last rate of a whole window."""

    @property
    def lssr(self) -> float:
        """Local steps as a share of all steps."""
        return self.local_steps / max(1, self.local_steps + self.sync_steps)

    def decided(self, step: int, choice: Choice) -> None:
        """Count a decision."""
        self.last_score = choice.score
        if choice.sync:
            self.sync_steps, self.last_sync_step = self.sync_steps + 1, step
        else:
            self.local_steps += 1

    def read(self, staleness: int) -> None:
        """Count a read under an asynchronous strategy."""
        self.reads, self.staleness_sum = self.reads + 1, self.staleness_sum + staleness
        self.staleness_max = max(self.staleness_max, staleness)

    def died(self, worker: int) -> None:
        """A worker has taken its residual along: as much as it last reported."""
        self._lost_norms[worker] = self._residual_norms.pop(worker, 0.0)

    def left(self, worker: int) -> None:
        """A worker has left and hands its residual over."""
        self._residual_norms.pop(worker, None)

    def came_back(self, worker: int) -> None:
        """A worker taken for dead is back, with its residual."""
        self._lost_norms.pop(worker, None)

    def metrics(self, reports: Mapping[int, m.Report], now_s: float) -> dict[str, float]:
        """Return the metrics of a step: sample-weighted losses, sums over all workers, shares so far."""
        for name in _SUMMED:
            self._sums[name] |= {worker: report.metrics[name] for worker, report in reports.items()}
        self._residual_norms |= {worker: report.metrics["feedback/residual_norm"] for worker, report in reports.items()}
        samples = sum(report.metrics["train/samples"] for report in reports.values())
        loss = sum(report.metrics["train/loss"] * report.metrics["train/samples"] for report in reports.values()) / max(
            1.0, samples
        )
        sums = {name: sum(by_worker.values()) for name, by_worker in self._sums.items()}
        found = {
            "train/loss": loss,
            "train/samples": samples,
            "train/samples_per_s": self._rate(samples, now_s),
            "comm/bytes_up": sums["comm/bytes_up"],
            "comm/bytes_down": sums["comm/bytes_down"],
            "comm/compression": sums["comm/dense_bytes"] / max(1.0, sums["comm/bytes_up"] + sums["comm/bytes_down"]),
            "feedback/residual_norm": math.hypot(*self._residual_norms.values()),
            "feedback/lost_norm": math.hypot(*self._lost_norms.values()),
        }
        if self._asynchronous:
            found |= {
                "staleness/max": float(self.staleness_max),
                "staleness/mean": self.staleness_sum / max(1, self.reads),
            }
        else:
            found |= {"sync/lssr": self.lssr, "sync/rounds": float(self.sync_steps)}
        if self.last_score is not None and math.isfinite(self.last_score):
            found["sync/grad_delta"] = self.last_score
        evaluated = [report.metrics for report in reports.values() if "eval/loss" in report.metrics]
        found |= {name: value for metrics in evaluated for name, value in metrics.items() if name.startswith("eval/")}
        return found | _measured(reports)

    def _rate(self, samples: float, now_s: float) -> float:
        since_s, counted, rate = self._window
        if since_s < 0:
            self._window = [now_s, 0.0, 0.0]  # the first step began before anybody looked at the clock
            return 0.0
        counted, passed_s = counted + samples, now_s - since_s
        if passed_s >= _RATE_WINDOW_S:
            since_s, counted, rate = now_s, 0.0, counted / passed_s
        elif rate == 0.0 and passed_s > 0:
            self._window = [since_s, counted, 0.0]
            return counted / passed_s
        self._window = [since_s, counted, rate]
        return rate

    def state_dict(self) -> dict[str, Any]:
        """Return the books."""
        return {name: copy.deepcopy(value) for name, value in vars(self).items() if name not in _OWN}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the books."""
        for name, value in state.items():
            setattr(self, name, copy.deepcopy(value))


def _measured(reports: Mapping[int, m.Report]) -> dict[str, float]:
    names = {name for report in reports.values() for name in report.metrics if name.startswith(_MEASURED)}
    values = {name: [r.metrics[name] for r in reports.values() if name in r.metrics] for name in sorted(names)}
    return {name: sum(found) / len(found) for name, found in values.items()}

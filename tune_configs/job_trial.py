"""A trial as Ray Tune sees it: it follows an ordinary job, and tells Tune of every evaluation of it.

One process serves many trials, one after the other. It holds no job by itself: a job is found by its id, which is made
of the trial's, so that whichever process goes on with a trial goes on with its job. Whoever runs the study starts them:
the first when Tune is given the trial, those of more seeds when the trial asks for them.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from ray.tune import Trainable

from actors.api.job import Job, find
from raysync.control.states import JobState
from raysync.errors import NotRunning
from raysync.events import Event, Metrics
from raysync.knobs import knob_of
from raysync.metrics import is_evaluation
from raysync.study import Seen
from raysync.study.study_spec import Floor

_WAIT_S = 5.0
_POLL_S = 0.1
_WORST = 1e30
_OVER = (JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED)


def job_id(study: str, trial_id: str, seed: int) -> str:
    """Return the id of a trial's job."""
    return f"{study}-{trial_id}" + (f"-s{seed}" if seed else "")


class _Ended(NamedTuple):
    """How a job went."""

    job: str
    state: JobState
    reason: str
    seen: list[Seen]


class JobTrial(Trainable):
    """Follows the jobs of one point one after another: one for each seed."""

    def setup(self, config: dict[str, Any]) -> None:
        """Begin with a point."""
        self._begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Go on with another trial in this process, or with the same one and other knobs."""
        self._begin(new_config)
        return True

    def _begin(self, config: dict[str, Any]) -> None:
        self._config = config["trial"]
        self._floor = Floor.model_validate(self._config["floor"])
        self._over: list[_Ended] = []
        self._await(0)
        self._has_asked = not self._config["asks"]
        if self._find() and self._config["knobs"]:
            self._turn({knob_of(path): value for path, value in self._config["knobs"].items()})
            while self._read(0.0):
                """What was told before is known."""

    def _await(self, seed: int) -> None:
        """Look for the job of a seed from now on."""
        self._id = job_id(self._config["study"], self.trial_id, seed)
        self._job: Job | None = None
        self._after, self._seen = -1, list[Seen]()
        self._first_s: float | None = None
        self._bytes = self._compute_s = 0.0
        self._told_names: set[str] = set()

    def _find(self) -> bool:
        """Return whether the job is on the cluster."""
        if self._job is None:
            with contextlib.suppress(ValueError):
                self._job = find(self._id)
        return self._job is not None

    def _turn(self, knobs: dict[str | None, Any]) -> None:
        """Turn what differs; a job that has ended meanwhile has no knobs to turn."""
        assert self._job is not None
        present = self._job.status().asked.values
        changes = {name: value for name, value in knobs.items() if name is not None and present.get(name) != value}
        if changes:
            with contextlib.suppress(NotRunning):
                self._job.turn(**changes)

    def step(self) -> dict[str, Any]:
        """Wait for the next evaluation, or for the end, but not for long: Tune ends no trial in the midst of a step."""
        deadline_s = time.monotonic() + _WAIT_S
        while not self._find():
            if not self._has_asked:
                self._has_asked = True
                return {"asks_for_seed": 0}
            if time.monotonic() > deadline_s:
                return {"waits_for": self._id}
            time.sleep(_POLL_S)
        job = self._job
        assert job is not None
        while True:
            count = len(self._seen)
            has_read = self._read(_WAIT_S)
            if len(self._seen) > count and not self._over:
                return self._told(self._seen[-1])
            status = job.status()
            if has_read and time.monotonic() < deadline_s:
                continue
            if has_read or (self._seen and status.state not in _OVER):
                return {"goes_on": status.reason}
            if status.state in _OVER and not job.records(self._after, 1, 0.0):
                return self._end(_Ended(job.id, status.state, status.reason, self._seen))
            if status.state not in _OVER and not self._seen:
                return {"waits_for": self._id, "reason": status.reason}

    def _read(self, wait_s: float) -> bool:
        """Take in what the job tells, up to its next evaluation; return whether it told anything."""
        assert self._job is not None
        events = self._job.records(self._after, 200, wait_s)
        for event in events:
            self._after = event.sequence
            if isinstance(event.body, Metrics) and self._take(event, event.body.values):
                break
        return bool(events)

    def _take(self, event: Event, values: Mapping[str, float | None]) -> bool:
        """Take in metrics; return whether they hold an evaluation that is new."""
        if "train/loss" in values and self._first_s is None:
            self._first_s = event.time_s
        if "comm/bytes_up" in values:
            self._bytes = (values["comm/bytes_up"] or 0.0) + (values.get("comm/bytes_down") or 0.0)
        self._compute_s = values.get("time/compute_s") or self._compute_s
        self._told_names |= {name for name in values if is_evaluation(name)}
        quality = values.get(self._floor.metric)
        if quality is None or not math.isfinite(quality):
            return False
        time_s = event.time_s - (self._first_s or event.time_s)
        seen = Seen(event.step, quality, self._bytes, time_s, self._compute_s)
        while self._seen and self._seen[-1].step > seen.step:
            self._seen.pop()  # the job has gone back to a checkpoint
        if self._seen and seen.step == self._seen[-1].step:
            self._seen[-1] = seen  # the final model, judged again
            return False
        self._seen.append(seen)
        return True

    def _told(self, seen: Seen) -> dict[str, Any]:
        assert self._job is not None
        status = self._job.status()
        knobs = {path: status.knobs.values.get(knob_of(path) or "") for path in self._config["knobs"]}
        pids = {name: found.pid for name, found in status.actors.items() if found.pid is not None}
        compared = {} if self._config["is_baseline"] else self._compared(seen)
        return {
            **compared,
            "seen": msgspec.to_builtins(seen),
            "job": self._job.id,
            "knob_version": status.knobs.version,
            "knobs": knobs,
            "pids": pids,
        }

    def _end(self, ended: _Ended) -> dict[str, Any]:
        """Ask for the job of the next seed if this one went well and there is one; else tell how all of them went."""
        self._over.append(ended)
        if ended.state is JobState.SUCCEEDED and len(self._over) < self._config["seeds"] and self._is_good(ended.seen):
            self._await(len(self._over))
            return {"asks_for_seed": len(self._over)}
        first, worst = self._over[0].seen, -_WORST if self._floor.is_upward else _WORST
        return {
            **(self._compared(first[-1]) if first else {"step": 0, "quality": worst, "promise": worst}),
            "job": self._over[0].job,
            "ended": {
                "state": ended.state.value,
                "reason": ended.reason,
                "jobs": [one.job for one in self._over],
                "told": sorted(self._told_names),
                "seeds": msgspec.to_builtins([one.seen for one in self._over]),
            },
            "done": True,
        }

    def _is_good(self, seen: list[Seen]) -> bool:
        return bool(seen) and self._floor.reached(seen[-1].quality)

    def _compared(self, seen: Seen) -> dict[str, float]:
        """Return what schedulers compare trials by."""
        return {"step": seen.step, "quality": seen.quality, "promise": self._floor.promise(seen.quality)}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        """Keep nothing: jobs have checkpoints of their own, and are never started again by a trial."""
        return {}

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Nothing was kept."""

"""How a job ends: why its next step is the last, and what must be safe before its workers may go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from raysync.engine import messages as m
from raysync.engine.plain import Fields, dump, load
from raysync.spec import Budget


class Ending:
    """From the wish to end to the last farewell."""

    _FIELDS: ClassVar[Fields] = {
        "is_decided": bool,
        "reason": str | None,
        "_is_stopped": bool,
        "_is_seen": bool,
        "model_is_safe": bool,
    }

    def __init__(self) -> None:
        self.is_decided = False
        """The last decision has been made; workers finish and part."""
        self.reason: str | None = None
        """Why the next step is the last, though the budget has more."""
        self._is_stopped = False
        self._is_seen = False
        """A worker has seen the last round, so it is not lost with the others."""
        self.model_is_safe = False
        """The final model has been saved, or there is none to save."""

    @property
    def is_complete(self) -> bool:
        """Whether the last round has been seen and the model is saved."""
        return self._is_seen and self.model_is_safe

    def stop(self, reason: str) -> None:
        """End the job with its next step."""
        self.reason, self._is_stopped = reason, True

    def look_at_time(self, now_s: float, budget: Budget) -> None:
        """End once the time is spent."""
        if budget.time_s is not None and now_s >= budget.time_s and self.reason is None:
            self.reason = f"{now_s:.1f} s of {budget.time_s:.1f} s are spent"

    def look_at_target(self, metrics: Mapping[str, float], budget: Budget) -> None:
        """End once the target is reached."""
        target = budget.target
        if target is not None and self.reason is None and target.reached(metrics):
            reached = f"{target.metric} reached {metrics[target.metric]:.4g}"
            self.reason = f"{reached}, the target is {target.value:.4g}"

    def without_workers(self) -> None:
        """No worker is there to make a last step: a job that was stopped has ended, one that only has spent its budget
        waits for a worker that makes the step and saves the model.
        """
        if self._is_stopped:
            self.is_decided = self._is_seen = self.model_is_safe = True

    def all_is_safe(self) -> None:
        """Members have been let go after the last round: they are only once the model is saved."""
        self._is_seen = self.model_is_safe = True

    def farewell(self, farewell: m.Farewell) -> bool:
        """Take note of what a worker has seen and saved; return whether the model is safe by that."""
        self._is_seen = self._is_seen or farewell.finished
        has_just_saved = farewell.saved and not self.model_is_safe
        self.model_is_safe = self.model_is_safe or farewell.saved
        return has_just_saved

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain data."""
        return dump(self, self._FIELDS)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        load(self, self._FIELDS, state)

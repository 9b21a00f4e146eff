"""What becomes of a batch whose loss or update is not finite: it counts for nothing, until there are too many.

A single bad sample, or an overflow, costs one batch of one worker. A model that has diverged gives nothing else any
more: so many in a row, or among the last steps, end the job.
"""

from __future__ import annotations

from collections import deque
from typing import Literal

from raysync.address import Address
from raysync.engine.messages import Skipped
from raysync.errors import Diverged

IN_A_ROW = 5
"""So many batches of one worker may be skipped one after the other."""
IN_WINDOW, WINDOW = 20, 200
"""So many may be among its last steps."""


class Skips:
    """Which batches of one worker were skipped."""

    def __init__(self, address: Address, policy: Literal["skip", "rollback", "fail"]) -> None:
        self._address, self._policy = address, policy
        self._steps: deque[int] = deque(maxlen=IN_WINDOW + 1)

    def add(self, step: int, problem: str, parameter: str = "") -> Skipped:
        """Return what is told of a batch that is skipped; raise `Diverged` if it is one too many, or none may be."""
        if self._policy != "skip":
            raise Diverged(self._address.index, step, problem)
        if step not in self._steps:
            self._steps.append(step)
        too_many = self._too_many(step)
        if too_many:
            raise Diverged(self._address.index, step, problem, too_many)
        return Skipped(who=self._address, step=step, problem=problem, parameter=parameter)

    def _too_many(self, step: int) -> str:
        last = {found for found in self._steps if found > step - IN_A_ROW}
        if len(last) == IN_A_ROW:
            return f"{IN_A_ROW} of its batches in a row were skipped for such"
        recent = [found for found in self._steps if found > step - WINDOW]
        return f"{len(recent)} of its last {WINDOW} batches were skipped for such" if len(recent) > IN_WINDOW else ""

    def state_dict(self) -> list[int]:
        """Return the steps."""
        return list(self._steps)

    def load_state_dict(self, steps: list[int]) -> None:
        """Continue from a saved state."""
        self._steps = deque(steps, maxlen=self._steps.maxlen)

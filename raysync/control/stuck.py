"""Whether a step takes far longer than the steps of the same worker usually do: user code may hang, in silence.

Nothing is done about it but to say so: a first compilation, or a slow disk, is no fault. What is usual is measured;
only what is short anyway has a floor.
"""

from __future__ import annotations

from collections import deque

FLOOR_S = 5.0
"""What takes no longer is never worth a word."""
FIRST_S = 60.0
"""So long a step may take of which nothing is known: much is compiled and read in the first."""
PATIENCE = 10.0
"""So many times the usual."""
QUANTILE = 0.9
"""So many of the last steps took no longer than what is usual."""
_REMEMBERED = 50


class StepTimes:
    """How long the last steps of one worker took, and since when it computes the present one."""

    def __init__(self) -> None:
        self._took_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._began_s: float | None = None
        self._is_told = False

    def began(self, now_s: float) -> None:
        """A step begins."""
        self._began_s, self._is_told = now_s, False

    def ended(self, now_s: float) -> None:
        """It is over."""
        if self._began_s is not None:
            self._took_s.append(now_s - self._began_s)
        self._began_s = None

    @property
    def usual_s(self) -> float | None:
        """How long nearly all of the last steps took; None before the first."""
        found = sorted(self._took_s)
        return found[int(QUANTILE * (len(found) - 1))] if found else None

    def stuck_s(self, now_s: float) -> float | None:
        """Return how long the present step has taken if that is far too long, once a step; else None."""
        began_s, usual_s = self._began_s, self.usual_s
        if began_s is None or self._is_told:
            return None
        bound_s = FIRST_S if usual_s is None else max(FLOOR_S, PATIENCE * usual_s)
        if now_s - began_s <= bound_s:
            return None
        self._is_told = True
        return now_s - began_s

"""Patience with storage that fails for a moment: tried again with ever longer pauses, up to a bound."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

SHORT_S = (0.2, 0.5, 1.0, 2.0)
"""For what may fail: all workers wait meanwhile."""
LONG_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 30.0, 30.0)
"""For what must not fail, or the job has."""

logger = logging.getLogger(__name__)


def patiently(
    action: Callable[[], T],
    what: str,
    waits_s: Sequence[float] = SHORT_S,
    sleep: Callable[[float], None] | None = None,
) -> T:
    """Return what `action` returns, trying again after each wait if it raises `OSError`; the last try raises."""
    for wait_s in waits_s:
        try:
            return action()
        except OSError as error:
            logger.warning("%s failed and is tried again in %g s: %s", what, wait_s, error)
        (sleep or time.sleep)(wait_s)
    return action()


class Backoff:
    """How long to wait after each failure in a row, and for how long there have been failures."""

    def __init__(self, first_s: float = 0.5, most_s: float = 15.0, now_s: Callable[[], float] = time.monotonic) -> None:
        self._first_s, self._most_s, self._now_s = first_s, most_s, now_s
        self._wait_s, self._since_s, self._due_s = first_s, 0.0, 0.0
        self.is_failing = False

    def failed(self) -> float:
        """Take note of a failure; return how long to wait before the next try."""
        if not self.is_failing:
            self.is_failing, self._wait_s, self._since_s = True, self._first_s, self._now_s()
        wait_s, self._wait_s = self._wait_s, min(self._most_s, 2 * self._wait_s)
        self._due_s = self._now_s() + wait_s
        return wait_s

    def succeeded(self) -> None:
        """Take note that all is well again."""
        self.is_failing = False

    @property
    def is_due(self) -> bool:
        """Whether the next try may be made."""
        return not self.is_failing or self._now_s() >= self._due_s

    @property
    def failing_s(self) -> float:
        """For how long every try has failed."""
        return self._now_s() - self._since_s if self.is_failing else 0.0

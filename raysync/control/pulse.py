"""Whether a process that has not answered is frozen: a pure function of how long it takes, how long it took before, and
what its machine says of it.

Nobody guesses a timeout. One that its machine has stopped is frozen at once. Of any other nothing is known but that it
is slow: it is given many times what it took before, and so is every one while whoever asks is slow itself. A busy
machine freezes nobody.
"""

from __future__ import annotations

from collections import deque

SUSPECT_S = 0.5
"""One that has not answered for so long is looked at more closely."""
UNSURE_S = 6.0
"""So long one may take of which nothing is known."""
PATIENCE = 8.0
"""So many times its slowest answer of late it may take."""
GIVEN_UP_S = 15.0
"""A worker that is frozen for so long is taken for dead: it is ended, and replaced."""
_REMEMBERED = 20
_SLOW_S = 2.0
"""No answer counts as slower than this: how long one was frozen says little of how slow it is."""


class Pulse:
    """What is known of one process: how fast it has answered, and since when a question waits."""

    def __init__(self) -> None:
        self._answers_s: deque[float] = deque(maxlen=_REMEMBERED)
        self.asked_s: float | None = None
        """When the question was asked that has no answer."""

    def ask(self, now_s: float) -> None:
        """A question is asked."""
        self.asked_s = now_s

    def answered(self, now_s: float) -> None:
        """It is answered."""
        if self.asked_s is not None:
            self._answers_s.append(min(now_s - self.asked_s, _SLOW_S))
        self.asked_s = None

    def silent_s(self, now_s: float) -> float:
        """Return how long it has not answered."""
        return 0.0 if self.asked_s is None else now_s - self.asked_s

    def is_frozen(self, now_s: float, *, is_stopped: bool, lag_s: float = 0.0) -> bool:
        """Return whether it is taken for frozen; `is_stopped` if its machine says so, `lag_s` is how late whoever asks
        has been of late.
        """
        if is_stopped:
            return self.silent_s(now_s) > SUSPECT_S
        slowest_s = max(self._answers_s, default=0.0)
        return self.silent_s(now_s) > max(UNSURE_S, PATIENCE * slowest_s, PATIENCE * lag_s)

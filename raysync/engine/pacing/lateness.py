"""Whom a step does not wait for: members whose report comes later than the job's `straggler_deadline` after the first.

A member that is left behind stays in the view. It takes no part in what is decided without it, and is not told of it;
when its late report comes it is told to catch up: what it has not sent goes into its residuals, and it takes part again
from the step that is open then.
"""

from __future__ import annotations

from collections.abc import Iterable

from raysync.address import Address


class Lateness:
    """When the first report of each step came, and who is behind."""

    def __init__(self) -> None:
        self.behind: frozenset[Address] = frozenset()
        """Members that a step has been decided without, and that have not caught up."""
        self._first_s: dict[int, float] = {}

    def reported(self, who: Address, step: int, now_s: float) -> None:
        """A member has reported the open step: it is behind no longer."""
        self._first_s.setdefault(step, now_s)
        self.behind -= {who}

    def due_s(self, step: int, deadline_s: float | None) -> float | None:
        """Return when a step waits no longer; None while nobody has reported it, or where there is no deadline."""
        first_s = self._first_s.get(step)
        return None if deadline_s is None or first_s is None else first_s + deadline_s

    def leave(self, missing: Iterable[Address]) -> None:
        """Wait for these no longer."""
        self.behind |= {*missing}

    def over(self, step: int) -> None:
        """A step is decided."""
        self._first_s = {later: first_s for later, first_s in self._first_s.items() if later > step}

    def forget(self, who: Address) -> None:
        """A member is gone."""
        self.behind -= {who}

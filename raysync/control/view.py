"""A view: who is a member, from which step on, and where the group then stands in the data. Numbered; every change
makes a new one.
"""

from __future__ import annotations

import msgspec


class Cursor(msgspec.Struct, frozen=True):
    """Where a group of workers stands in the data."""

    epoch: int = 0
    """Which common order of the samples is being read."""
    lap: int = 0
    """How often the chunks of this order have been passed on; one lap reads every sample once."""
    spent: tuple[tuple[int, int], ...] = ()
    """What earlier views have read of this lap: (number of workers, steps) each."""


class View(msgspec.Struct, frozen=True):
    """The membership of a job. Messages carry its number; an old number is answered with the new view."""

    number: int = 0
    members: tuple[int, ...] = ()
    """Worker ids, ascending."""
    leavers: tuple[int, ...] = ()
    """Workers on their way out: they finish their last round and hand over, but get no more steps."""
    start_step: int = 0
    """The first step whose samples are dealt out among these members."""
    cursor: Cursor = Cursor()
    first_rounds: dict[int, int] = {}
    """The first round each member takes part in: one that joined anew owes nothing to rounds decided before."""

    @property
    def everyone(self) -> tuple[int, ...]:
        """Members and leavers: whoever may still take part in a round."""
        return tuple(sorted({*self.members, *self.leavers}))

    def contributors(self, participants: tuple[int, ...], round: int) -> set[int]:
        """Return those of a round's participants who are still expected to push."""
        everyone, first_rounds = self.everyone, self.first_rounds
        return {worker for worker in participants if worker in everyone and first_rounds.get(worker, 0) <= round}

    def rank(self, worker: int) -> int:
        """Return the place of a worker among the members."""
        return self.members.index(worker)


NO_VIEW = View()

"""A view: all that the members of a job must agree on. Who is in, from which step on, where the group then stands in
the data, which shard serves which blocks, and the knobs. Numbered; every change makes a new one.
"""

from __future__ import annotations

from functools import cached_property

import msgspec

from raysync.address import Address
from raysync.knobs import Knobs


class Cursor(msgspec.Struct, frozen=True):
    """Where a group of workers stands in the data."""

    epoch: int = 0
    """Which common order of the samples is being read."""
    lap: int = 0
    """How often the chunks of this order have been passed on; one lap reads every sample once."""
    spent: tuple[tuple[int, int], ...] = ()
    """What earlier views have read of this lap: (number of workers, steps) each."""


class View(msgspec.Struct, frozen=True, dict=True):
    """What members agree on. Messages carry its number; an old number is answered with the new view."""

    number: int = 0
    members: tuple[Address, ...] = ()
    """Ascending."""
    leavers: tuple[Address, ...] = ()
    """Workers on their way out: they finish their last round and hand over, but get no more steps."""
    start_step: int = 0
    """The first step whose samples are dealt out among these members."""
    cursor: Cursor = Cursor()
    first_rounds: dict[Address, int] = {}
    """The first round each member takes part in: one that joined anew owes nothing to rounds decided before."""
    last_rounds: dict[Address, int] = {}
    """The last round each leaver takes part in."""
    servers: tuple[Address, ...] = ()
    """Which shard serves each slot; a block's slot never changes, who serves it may."""
    backups: tuple[Address | None, ...] = ()
    """Who follows the shard of each slot, and takes its place when it dies; None where nobody does now."""
    knobs: Knobs = Knobs(0, {})
    """In force from this view on."""
    num_samples: int = 0
    """How much data they share."""
    num_elements: int = 0
    """How long the flat vector is that they train."""
    life: int = 0
    """Which of the job's coordinators made it: what one says that has been succeeded counts no more."""

    @cached_property
    def everyone(self) -> tuple[Address, ...]:
        """Members and leavers: whoever may still take part in a round."""
        return tuple(sorted({*self.members, *self.leavers}))

    @cached_property
    def here(self) -> frozenset[Address]:
        """The same as a set, for those who ask at every message."""
        return frozenset(self.everyone)

    def contributors(self, participants: tuple[Address, ...] | None, round: int) -> set[Address]:
        """Return those of a round's participants (None: all who were in) who are still expected to push."""
        asked = self.here if participants is None else self.here.intersection(participants)
        return {worker for worker in asked if self._owes(worker, round)}

    def _owes(self, worker: Address, round: int) -> bool:
        return self.first_rounds.get(worker, 0) <= round and round <= self.last_rounds.get(worker, round)

    def at_stage(self, stage: int) -> View:
        """Return the view as the cores of a stage see it. The coordinator's names a pipeline by its first stage."""
        return self if stage == 0 else self._renamed(stage)

    def _renamed(self, stage: int) -> View:
        return msgspec.structs.replace(
            self,
            members=at_stage(self.members, stage),
            leavers=at_stage(self.leavers, stage),
            first_rounds={who.at(stage): round for who, round in self.first_rounds.items()},
            last_rounds={who.at(stage): round for who, round in self.last_rounds.items()},
            servers=at_stage(self.servers, stage),
            backups=tuple(None if backup is None else backup.at(stage) for backup in self.backups),
        )

    def backup_of(self, server: Address) -> Address | None:
        """Return who follows a shard."""
        if server not in self.servers or not self.backups:
            return None
        return self.backups[self.servers.index(server)]

    @property
    def of_pipelines(self) -> View:
        """The view as the coordinator has it, whichever stage's cores were told it."""
        first = at_stage(self.everyone, 0) == self.everyone and at_stage(self.servers, 0) == self.servers
        return self if first else self._renamed(0)

    def rank(self, worker: Address) -> int:
        """Return the place of a worker among the members."""
        return self.members.index(worker)


NO_VIEW = View()


def at_stage(addresses: tuple[Address, ...], stage: int) -> tuple[Address, ...]:
    """Return who has these places at a stage."""
    return tuple(address.at(stage) for address in addresses)

"""How often what has failed is tried again, and how soon: one table, a line for every cause.

The first retry is immediate; the next comes no sooner than so long after that failure, and each one after it twice as
long. What is spent on one cause is not missing for another: machines that are taken away cost nothing of what errors
may.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from raysync.address import Address, Role
from raysync.control.incidents import Incidents, with_deaths


class Cause(StrEnum):
    """What a failure came of."""

    WORKER = "worker"
    """a worker's, or a stage's, process ended"""
    MACHINE = "machine"
    """its machine was taken away, or is lost, whatever lived there"""
    SHARD = "shard"
    """a shard ended that no other could take the place of"""
    COORDINATOR = "coordinator"
    EVALUATOR = "evaluator"
    DIVERGENCE = "divergence"
    """a loss or an update was not finite, and the job goes back to a checkpoint for that"""


class Budget(NamedTuple):
    """What one cause may cost."""

    tries: int | None
    """So many retries; None for as many as it takes."""
    first_s: float
    """The second comes no sooner than so long after the first failure; each after it twice as long after the last."""
    most_s: float
    """None waits longer."""
    remedy: str
    """What would help once they are spent."""
    ends_with_step: bool = True
    """A step made by all begins the count anew."""
    forgotten_s: float | None = None
    """So does a failure that comes so long after the last."""


BUDGETS: Mapping[Cause, Budget] = MappingProxyType(
    {
        Cause.WORKER: Budget(
            5, 0.5, 30.0, "look at its lines in the job's log; if its memory was too small, lower data.batch_size"
        ),
        Cause.MACHINE: Budget(None, 0.5, 60.0, "add machines that stay"),
        Cause.SHARD: Budget(3, 1.0, 30.0, "set scale.replicas: 1, so that another shard takes its place"),
        Cause.COORDINATOR: Budget(3, 1.0, 30.0, "look at its lines in the job's log, and at its machine's memory"),
        Cause.EVALUATOR: Budget(5, 1.0, 60.0, "set eval.on: workers", ends_with_step=False, forgotten_s=3600.0),
        Cause.DIVERGENCE: Budget(
            3, 0.0, 0.0, "lower the learning rate, or look at the samples of that step", ends_with_step=False
        ),
    }
)

_OF_ROLE = {
    Role.WORKER: Cause.WORKER,
    Role.STAGE: Cause.WORKER,
    Role.SHARD: Cause.SHARD,
    Role.COORDINATOR: Cause.COORDINATOR,
    Role.EVALUATOR: Cause.EVALUATOR,
}


def cause_of(who: Address, known: Cause | None = None) -> Cause:
    """Return what the end of an actor came of: what is known of it, else what its role says."""
    return known or _OF_ROLE[who.role]


class Retries(msgspec.Struct, frozen=True):
    """What has been spent, by cause."""

    incidents: dict[Cause, Incidents] = {}

    def of(self, cause: Cause) -> Incidents:
        """Return the failures of a cause that count."""
        return self.incidents.get(cause, Incidents())

    def after_failure(self, cause: Cause, why: str, now_s: float) -> Retries:
        """Return what is spent once something of this cause has failed."""
        return self._with(cause, Incidents(self.count(cause, now_s) + 1, now_s, frozenset(), why))

    def after_deaths(
        self, dead: Mapping[Address, tuple[Cause, str]], started: Collection[Address], now_s: float
    ) -> Retries:
        """Return what is spent once these workers, of all that have been started, were found dead: those of one cause
        cost one retry, however many they are.
        """
        found = self
        for cause in Cause:
            named = {who: why for who, (of, why) in dead.items() if of is cause}
            if named:
                found = found._with(cause, with_deaths(found.of(cause), named, started, now_s))
        return found

    def after_step(self) -> Retries:
        """Return what is still spent once all have made a step."""
        kept = {cause: count for cause, count in self.incidents.items() if not BUDGETS[cause].ends_with_step}
        return self if len(kept) == len(self.incidents) else Retries(kept)

    def count(self, cause: Cause, now_s: float) -> int:
        """Return how many failures of a cause count now."""
        found, forgotten_s = self.of(cause), BUDGETS[cause].forgotten_s
        is_old = forgotten_s is not None and now_s - found.began_s > forgotten_s
        return 0 if is_old else found.in_a_row

    def allows(self, cause: Cause, now_s: float) -> bool:
        """Return whether there is a retry left for a failure that is not counted yet."""
        tries = BUDGETS[cause].tries
        return tries is None or self.count(cause, now_s) < tries

    def delay_s(self, cause: Cause) -> float:
        """Return how long after the last failure the next retry may come."""
        count, budget = self.of(cause).in_a_row, BUDGETS[cause]
        return min(budget.most_s, budget.first_s * 2 ** min(count - 1, 30)) if count else 0.0

    def waits(self, cause: Cause, now_s: float) -> bool:
        """Return whether it is too soon for the next retry."""
        return 0.0 <= now_s - self.of(cause).began_s < self.delay_s(cause)

    def _with(self, cause: Cause, incidents: Incidents) -> Retries:
        return Retries({**self.incidents, cause: incidents})

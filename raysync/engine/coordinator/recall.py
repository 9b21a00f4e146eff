"""What a coordinator learns that takes over: it asks every core, and whatever anybody was told still holds.

A decision that nobody has heard of was never made: the reports it rested on come again, and so does the decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from raysync.address import Address, Role
from raysync.control.view import NO_VIEW, View, at_stage
from raysync.engine import messages as m
from raysync.engine.effects import Effects, Send
from raysync.knobs import Knobs

_MEMBERS = (Role.WORKER, Role.STAGE)


@dataclass(frozen=True)
class Past:
    """What cores have told, in the coordinator's terms: a pipeline is named by its first stage."""

    view: View
    """The newest anybody has heard of."""
    members: Mapping[Address, m.Account]
    """Of whoever is in: of a pipeline, what its stages come to."""
    absent: tuple[Address, ...]
    """Whoever should be in, and is not, or does not know it."""
    decisions: tuple[m.Decision, ...]
    """In order, each once, as the new coordinator's own; those of one worker where each has its own clock are left to
    `members`.
    """
    round: int
    """The last synchronisation decided on."""
    covering: frozenset[Address]
    """Backups that know all that their shards have said, as the coordinator names them."""
    checkpoint: int
    """The last one that was begun."""
    told_step: int
    """The last step whose decision is in the job's history: all there is to know where no member is left."""

    told: tuple[m.Told, ...] = ()
    """The last decisions that are in the job's history."""
    life: int = 0
    """Of whoever asks."""

    @property
    def knobs(self) -> Knobs:
        """The newest that anybody has been told to be in force."""
        return max([self.view.knobs, *(decision.knobs for decision in self.decisions)], key=lambda found: found.version)

    @property
    def last(self) -> m.Decision | None:
        """The last decision."""
        return self.decisions[-1] if self.decisions else None

    @property
    def next_step(self) -> int:
        """The first step that nothing has been decided about, as far as anybody knows."""
        begun = [account.step for account in self.members.values()]
        return max([*begun, self.told_step + 1, -1 if self.last is None else self.last.step + 1])


class Recall:
    """Asks, and collects the answers."""

    def __init__(self, succession: m.Succession, num_stages: int) -> None:
        self.succession, self._num_stages = succession, num_stages
        self._missing = set(succession.roster)
        self._dead: set[Address] = set()
        self._accounts: dict[Address, m.Account] = {}
        self.kept: list[m.Message] = []
        """What the host has said meanwhile."""

    @property
    def is_complete(self) -> bool:
        """Whether every core has answered that can."""
        return not self._missing

    def ask(self) -> Effects:
        """Return the question for whoever has not answered."""
        asked = m.Recount(life=self.succession.life, after_step=self.succession.told_step)
        return [Send(who, asked) for who in sorted(self._missing)]

    def told(self, account: m.Account) -> None:
        """Take in an answer."""
        if account.life == self.succession.life and account.sender in self.succession.roster:
            self._missing.discard(account.sender)
            self._accounts[account.sender] = account

    def died(self, who: Address) -> None:
        """Expect no answer of a core; what it has told, or still tells, is true, but does not make it a member."""
        dead = [who.at(stage) for stage in range(self._num_stages)] if who.role is Role.SHARD else [who]
        self._missing.difference_update(dead)  # shards of all stages are in one process
        self._dead.update(dead)

    def past(self) -> Past:
        """Return what all have told."""
        told, life = self._accounts, self.succession.life
        view = max((account.view for account in told.values()), key=_age, default=NO_VIEW).of_pipelines
        known = [account for who, account in told.items() if who.role in _MEMBERS]
        decisions = {
            decision.step: msgspec.structs.replace(_of_pipelines(decision), life=life)
            for account in known
            for decision in account.decisions
        }
        heard = [*(account.round for account in known), *(found.round for found in decisions.values())]
        round = max([-1, *heard, *(found.round for found in self.succession.told)])
        closed = max([account.round for who, account in told.items() if who.role is Role.SHARD], default=-1)
        found = {who: self._replica(who) for who in sorted({account.sender.at(0) for account in known})}
        members = {who: account for who, account in found.items() if account is not None and who in view.here}
        since = {
            account.sender.at(0): account.first_step for account in known
        }  # it may have left before, and come back
        told_to_leave = {
            who.at(0)
            for account in known
            for found in account.decisions
            for who in found.leavers
            if found.step >= since.get(who.at(0), 0)
        }
        untold = {who for who in view.leavers if who not in told_to_leave}  # that it may go was decided, and not heard
        members = {who: account for who, account in members.items() if who not in untold}
        if closed > round:
            members = {}  # whoever knew of the last round is gone: all others fetch what it came to
        if not members:  # nobody is left to end a round that was begun: it ends with what was pushed to it
            closed = max([closed, *(account.begun for account in told.values())])
        return Past(
            view=view,
            members=members,
            absent=tuple(
                who
                for who in view.everyone
                if who not in members and who not in self.succession.parted and (who in view.members or who in untold)
            ),
            decisions=tuple(decisions[step] for step in sorted(decisions)),
            round=max(round, closed),
            covering=self._covering(view),
            checkpoint=max((account.checkpoint for account in told.values()), default=0),
            told_step=self.succession.told_step,
            told=self.succession.told,
            life=life,
        )

    def _covering(self, view: View) -> frozenset[Address]:
        """Return the backups that cover their shard at every stage."""
        told = {account.covered_by for account in self._accounts.values() if account.covered_by is not None}
        stages = range(self._num_stages)
        found = [backup for backup in view.backups if backup is not None]
        return frozenset(backup for backup in found if all(backup.at(stage) in told for stage in stages))

    def _replica(self, first: Address) -> m.Account | None:
        """Return what the stages of a replica come to; None if it is not whole, or not all of it is in."""
        parts = [self._accounts.get(first.at(stage)) for stage in range(self._num_stages)]
        parts = [None if account is None or account.sender in self._dead else account for account in parts]
        accounts = [account for account in parts if account is not None and account.is_in]
        if len(accounts) < self._num_stages or len({account.ticket for account in accounts}) > 1:
            return None
        decisions: Iterable[m.Decision] = (decision for account in accounts for decision in account.decisions)
        by_step = {decision.step: decision for decision in decisions}
        return msgspec.structs.replace(
            accounts[0],
            is_synced=any(account.is_synced for account in accounts),
            step=max(account.step for account in accounts),
            round=max(account.round for account in accounts),
            wants_out=any(account.wants_out for account in accounts),
            call=max(account.call for account in accounts),
            decisions=tuple(by_step[step] for step in sorted(by_step)),
        )


def _age(view: View) -> tuple[int, int]:
    return view.life, view.number


def _of_pipelines(decision: m.Decision) -> m.Decision:
    """Return a decision in the coordinator's terms, whichever stage was told it."""
    participants = None if decision.participants is None else at_stage(decision.participants, 0)
    return msgspec.structs.replace(decision, participants=participants, leavers=at_stage(decision.leavers, 0))

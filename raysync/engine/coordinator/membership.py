"""Membership: who is in, who is on the way in or out, and which shards have heard of the present view."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from raysync.address import Address
from raysync.control.view import NO_VIEW, Cursor, View
from raysync.engine import messages as m
from raysync.engine.effects import Effects, Send
from raysync.engine.plain import Fields, dump, load
from raysync.errors import ProtocolError
from raysync.knobs import Knobs

if TYPE_CHECKING:
    from raysync.engine.coordinator.recall import Past


_TICKETS = 1 << 16
"""So many views and tickets of a worker's a coordinator may count; its successor's begin above them."""


class Membership:
    """The coordinator's knowledge of the workers; every change makes a new numbered view."""

    _FIELDS: ClassVar[Fields] = {
        "view": View,
        "num_samples": int,
        "num_elements": int,
        "joining": dict[Address, m.Join],
        "first_steps": dict[Address, int],
        "wants_out": list[Address],
        "_welcomes": dict[Address, m.Welcome],
        "_tickets": dict[Address, int],
        "_parted": list[Address],
        "_unseen": list[Address],
        "life": int,
    }

    def __init__(self, servers: tuple[Address, ...], backups: tuple[Address | None, ...] = ()) -> None:
        self._servers, self._backups = servers, backups or (None,) * len(servers)
        """The shard of each slot, and who follows it."""
        self._covered: set[int] = set()
        """Slots whose backup knows all that its shard has said."""
        self._orphaned: set[int] = set()
        """Slots whose shard has died before it was known that its backup knows."""
        self.view = NO_VIEW
        self.num_samples = self.num_elements = 0
        self.joining: dict[Address, m.Join] = {}
        self.first_steps: dict[Address, int] = {}
        """The first step of each member."""
        self.wants_out: list[Address] = []
        self._welcomes: dict[Address, m.Welcome] = {}
        self._tickets: dict[Address, int] = {}
        """How often each worker has died or left: an old request of its to join counts no more."""
        self._parted: list[Address] = []
        self._unseen: list[Address] = []
        self.life = 0

    # Taking over

    def begin_life(self, life: int) -> None:
        """Go on for a coordinator that is gone: no request to join that was made to it counts."""
        self.life = life

    def resume(self, past: Past, succession: m.Succession) -> None:
        """Take over what members have told."""
        self.num_samples, self.num_elements = past.view.num_samples, past.view.num_elements
        self.view = msgspec.structs.replace(past.view, life=succession.life)
        self._servers = self.view.servers
        self._backups = self.view.backups or (None,) * len(self._servers)
        for slot, backup in enumerate(self._backups):
            if backup is not None and backup in past.covering:
                self._covered.add(slot)
        self.first_steps = dict.fromkeys(past.view.members, 0)
        self.first_steps |= {who: told.first_step for who, told in past.members.items() if who in self.view.members}
        self.wants_out = [who for who, told in past.members.items() if told.wants_out and who in self.view.members]
        self._tickets = {who: told.ticket for who, told in past.members.items()}
        left = [who for who in past.view.leavers if who not in past.members]
        self._parted = [*left, *(who for who in succession.parted if who in self.view.everyone and who not in left)]

    @property
    def _next_number(self) -> int:
        """What the next view is called: a coordinator that takes over may not have heard of the last one made."""
        return max(self.view.number, self._first_ticket) + 1

    @property
    def present_view(self) -> View:
        """The view for whoever asks. One that takes over before it has heard of any has nobody in: a worker that knows
        more than all others joins again.
        """
        if self.view.number > 0 or self.life == 0:
            return self.view
        return View(number=self._first_ticket, servers=self._servers, life=self.life)

    @property
    def _first_ticket(self) -> int:
        """What everybody begins with under this coordinator."""
        return self.life * _TICKETS

    @property
    def all_parted(self) -> bool:
        """Whether every worker has said farewell."""
        return {*self.view.everyone} <= {*self._parted}

    @property
    def parted(self) -> tuple[Address, ...]:
        """Whoever of the present view has said farewell."""
        return tuple(worker for worker in self.view.everyone if worker in self._parted)

    def has_parted(self, worker: Address) -> bool:
        """Return whether a worker has said farewell."""
        return worker in self._parted

    @property
    def leavers_left(self) -> bool:
        """Whether a worker on its way out has not said farewell."""
        return not {*self.view.leavers} <= {*self._parted}

    def active(self, step: int) -> tuple[Address, ...]:
        """Return the members that take part in a step."""
        return tuple(worker for worker in self.view.members if self.first_steps[worker] <= step)

    def ask_in(self, join: m.Join) -> Effects:
        """Take note of a worker that wants in; repeat the welcome to one that has missed it."""
        brought = join.num_samples, join.num_elements
        if (self.num_samples, self.num_elements) not in ((0, 0), brought):
            raise ProtocolError(
                str(join.sender),
                f"brings {brought[0]} samples and a vector of {brought[1]} elements, the others {self.num_samples} and "
                f"{self.num_elements}; model() and train_data() must give every worker the same",
            )
        self.num_samples, self.num_elements = brought
        ticket = self._ticket(join.sender)
        if join.ticket != ticket:
            return [Send(join.sender, m.AskAgain(ticket=ticket))]
        if join.sender in self._welcomes:
            return [self._welcoming(join.sender)]
        if join.sender not in self.view.everyone:
            self.joining[join.sender] = join
        return []

    def declare_dead(self, worker: Address) -> bool:
        """Take note of a death; return whether the view must change for it."""
        self._tickets[worker] = max(self._first_ticket, self._ticket(worker)) + 1
        self.joining.pop(worker, None)
        return worker in self.view.everyone

    def ask_out(self, worker: Address) -> None:
        """Take note of a worker that wants out."""
        if worker in self.view.members and worker not in self.wants_out:
            self.wants_out.append(worker)

    def heard_from(self, worker: Address) -> None:
        """A worker has reported, so it has read its welcome."""
        self._welcomes.pop(worker, None)

    def part(self, worker: Address) -> bool:
        """Take note of a farewell; return whether it is the first from this worker."""
        if worker in self._parted:
            return False
        self._parted.append(worker)
        self._tickets[worker] = max(self._first_ticket, self._ticket(worker)) + 1
        return True

    def _ticket(self, worker: Address) -> int:
        return self._tickets.get(worker, self._first_ticket)

    def seen(self, message: m.ViewSeen) -> None:
        """A shard has adopted a view."""
        if message.number == self.view.number and message.sender in self._unseen:
            self._unseen.remove(message.sender)

    def change(
        self,
        start_step: int,
        cursor: Cursor,
        first_round: int,
        knobs: Knobs,
        admitted: tuple[Address, ...] = (),
        leaving: tuple[Address, ...] = (),
        gone: tuple[Address, ...] = (),
    ) -> None:
        """Make the next view."""
        old = self.view
        members = tuple(sorted({*old.members, *admitted} - {*leaving, *gone}))
        leavers = tuple(sorted({*old.leavers, *leaving} - {*gone, *self._parted}))
        first_rounds = {worker: old.first_rounds.get(worker, 0) for worker in (*members, *leavers)}
        first_rounds |= dict.fromkeys(admitted, first_round)
        last_rounds = {worker: old.last_rounds.get(worker, first_round - 1) for worker in leavers}
        servers = self._servers
        self.view = View(
            number=self._next_number,
            members=members,
            leavers=leavers,
            start_step=start_step,
            cursor=cursor,
            first_rounds=first_rounds,
            last_rounds=last_rounds,
            servers=servers,
            backups=self._backups,
            knobs=knobs,
            num_samples=self.num_samples,
            num_elements=self.num_elements,
            life=self.life,
        )
        self._unseen = [*servers]
        for worker in (*leaving, *gone):
            self.first_steps.pop(worker, None)
            self._welcomes.pop(worker, None)
            self.wants_out = [other for other in self.wants_out if other != worker]
        self._parted = [worker for worker in self._parted if worker not in admitted]

    def retune(self, knobs: Knobs) -> None:
        """Make the next view, with the same members and other knobs."""
        self.view = msgspec.structs.replace(
            self.view,
            number=self._next_number,
            knobs=knobs,
            servers=self._servers,
            backups=self._backups,
            life=self.life,
        )
        self._unseen = [*self._servers]

    # Shards

    @property
    def covered(self) -> tuple[Address, ...]:
        """The shards whose backup could take their place now."""
        return tuple(self._servers[slot] for slot in sorted(self._covered))

    def stand_by(self, who: Address) -> bool:
        """Let a shard follow the one of its slot; return whether that is news."""
        slot = who.index % len(self._servers)
        if who in self._servers or self._backups[slot] is not None:
            return False
        self._follow(slot, who)
        return True

    def cover(self, told: m.Covered) -> bool:
        """A backup knows all that its shard has said; return whether it takes that one's place by this."""
        if told.backup not in self._backups or told.sender not in self._servers:
            return False
        slot = self._backups.index(told.backup)
        if self._servers[slot] != told.sender:
            return False
        self._covered.add(slot)
        return slot in self._orphaned and self._promote(slot)

    def shard_died(self, who: Address) -> bool:
        """Go on without a shard; return whether the view changes by that. One whose backup is not known to know all
        waits for the backup's word.
        """
        if who in self._backups:
            self._follow(self._backups.index(who), None)
            return True
        if who not in self._servers:
            return False
        slot = self._servers.index(who)
        self._orphaned.add(slot)
        return slot in self._covered and self._promote(slot)

    def _promote(self, slot: int) -> bool:
        backup = self._backups[slot]
        if backup is None:
            return False
        self._servers = (*self._servers[:slot], backup, *self._servers[slot + 1 :])
        self._orphaned.discard(slot)
        self._follow(slot, None)
        return True

    def _follow(self, slot: int, backup: Address | None) -> None:
        self._backups = (*self._backups[:slot], backup, *self._backups[slot + 1 :])
        self._covered.discard(slot)

    def welcome(self, worker: Address, welcome: m.Welcome) -> None:
        """Let a worker of the present view in, from the welcome's step on."""
        del self.joining[worker]
        self.first_steps[worker] = welcome.step
        self._welcomes[worker] = welcome

    def news(self) -> Effects:
        """Return the present view for every core, and the welcomes not yet taken up."""
        sends = self.unheard() + [Send(to, m.NewView(view=self.view)) for to in self.view.everyone]
        return sends + [self._welcoming(worker) for worker in sorted(self._welcomes)]

    def _welcoming(self, worker: Address) -> Send:
        """Return a welcome, under the present view; whoever has read it hears of that view by itself."""
        return Send(worker, msgspec.structs.replace(self._welcomes[worker], view=self.view))

    def unheard(self) -> Effects:
        """Return the present view for the shards that have not confirmed it."""
        return [Send(to, m.NewView(view=self.view)) for to in self._unseen]

    def state_dict(self) -> dict[str, Any]:
        """Return the membership as plain data."""
        return dump(self, self._FIELDS)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state with the shards there are now: each has the state of its slot, whoever served it
        then, and none is followed yet.
        """
        load(self, self._FIELDS, state)
        if self.view.number > 0 and (self.view.servers != self._servers or any(self._backups)):
            self.retune(self.view.knobs)

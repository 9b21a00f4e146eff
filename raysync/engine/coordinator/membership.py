"""Membership: who is in, who is on the way in or out, and which shards have heard of the present view."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from raysync.address import Address
from raysync.control.view import NO_VIEW, Cursor, View
from raysync.engine import messages as m
from raysync.engine.effects import Effects, Send
from raysync.engine.plain import Fields, dump, load
from raysync.errors import ProtocolError
from raysync.knobs import Knobs


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
    }

    def __init__(self, servers: tuple[Address, ...]) -> None:
        self._servers = servers
        """The shard of each slot."""
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
        ticket = self._tickets.get(join.sender, 0)
        if join.ticket != ticket:
            return [Send(join.sender, m.AskAgain(ticket=ticket))]
        welcome = self._welcomes.get(join.sender)
        if welcome is not None:
            return [Send(join.sender, msgspec.structs.replace(welcome, view=self.view))]
        if join.sender not in self.view.everyone:
            self.joining[join.sender] = join
        return []

    def declare_dead(self, worker: Address) -> bool:
        """Take note of a death; return whether the view must change for it."""
        self._tickets[worker] = self._tickets.get(worker, 0) + 1
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
        self._tickets[worker] = self._tickets.get(worker, 0) + 1
        return True

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
            old.number + 1, members, leavers, start_step, cursor, first_rounds, last_rounds, servers, knobs
        )
        self._unseen = [*servers]
        for worker in (*leaving, *gone):
            self.first_steps.pop(worker, None)
            self._welcomes.pop(worker, None)
            self.wants_out = [other for other in self.wants_out if other != worker]
        self._parted = [worker for worker in self._parted if worker not in admitted]

    def retune(self, knobs: Knobs) -> None:
        """Make the next view, with the same members and other knobs."""
        self.view = msgspec.structs.replace(self.view, number=self.view.number + 1, knobs=knobs)
        self._unseen = [*self._servers]

    def welcome(self, worker: Address, welcome: m.Welcome) -> None:
        """Let a worker of the present view in, from the welcome's step on."""
        del self.joining[worker]
        self.first_steps[worker] = welcome.step
        self._welcomes[worker] = welcome

    def news(self) -> Effects:
        """Return the present view for every core, and the welcomes not yet taken up."""
        known = [worker for worker in self.view.everyone if worker not in self._welcomes]
        sends = self.unheard() + [Send(to, m.NewView(view=self.view)) for to in known]
        return sends + [Send(worker, welcome) for worker, welcome in sorted(self._welcomes.items())]

    def unheard(self) -> Effects:
        """Return the present view for the shards that have not confirmed it."""
        return [Send(to, m.NewView(view=self.view)) for to in self._unseen]

    def state_dict(self) -> dict[str, Any]:
        """Return the membership as plain data."""
        return dump(self, self._FIELDS)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        load(self, self._FIELDS, state)

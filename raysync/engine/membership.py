"""Membership: who is in, who is on the way in or out, and which shards have heard of the present view."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from raysync.control.view import NO_VIEW, Cursor, View
from raysync.engine import messages as m
from raysync.engine.plain import Fields, dump, load
from raysync.errors import ProtocolError


class Membership:
    """The coordinator's knowledge of the workers; every change makes a new numbered view."""

    _FIELDS: ClassVar[Fields] = {
        "view": View,
        "num_samples": int,
        "num_elements": int,
        "joining": dict[int, m.Join],
        "first_steps": dict[int, int],
        "wants_out": list[int],
        "_welcomes": dict[int, m.Welcome],
        "_tickets": dict[int, int],
        "_parted": list[int],
        "_unseen": list[int],
    }

    def __init__(self, num_shards: int) -> None:
        self._num_shards = num_shards
        self.view = NO_VIEW
        self.num_samples = self.num_elements = 0
        self.joining: dict[int, m.Join] = {}
        self.first_steps: dict[int, int] = {}
        """The first step of each member."""
        self.wants_out: list[int] = []
        self._welcomes: dict[int, m.Welcome] = {}
        self._tickets: dict[int, int] = {}
        """How often each worker has died or left: an old request of its to join counts no more."""
        self._parted: list[int] = []
        self._unseen: list[int] = []

    @property
    def all_parted(self) -> bool:
        """Whether everybody has said farewell."""
        return {*self.view.everyone} <= {*self._parted}

    @property
    def leavers_left(self) -> bool:
        """Whether somebody on the way out has not said farewell."""
        return not {*self.view.leavers} <= {*self._parted}

    def active(self, step: int) -> tuple[int, ...]:
        """Return the members that take part in a step."""
        return tuple(worker for worker in self.view.members if self.first_steps[worker] <= step)

    def ask_in(self, join: m.Join) -> list[m.Send]:
        """Take note of somebody who wants in; repeat the welcome of somebody who has missed it."""
        brought = join.num_samples, join.num_elements
        if (self.num_samples, self.num_elements) not in ((0, 0), brought):
            raise ProtocolError(
                m.worker_address(join.worker),
                f"brings {brought[0]} samples and a vector of {brought[1]} elements, the others {self.num_samples} and "
                f"{self.num_elements}; model() and train_data() must give every worker the same",
            )
        self.num_samples, self.num_elements = brought
        ticket = self._tickets.get(join.worker, 0)
        if join.ticket != ticket:
            return [m.Send(m.worker_address(join.worker), m.AskAgain(ticket=ticket))]
        welcome = self._welcomes.get(join.worker)
        if welcome is not None:
            return [m.Send(m.worker_address(join.worker), msgspec.structs.replace(welcome, view=self.view))]
        if join.worker not in self.view.everyone:
            self.joining[join.worker] = join
        return []

    def declare_dead(self, worker: int) -> bool:
        """Take note of a death; return whether the view must change for it."""
        self._tickets[worker] = self._tickets.get(worker, 0) + 1
        self.joining.pop(worker, None)
        return worker in self.view.everyone

    def ask_out(self, worker: int) -> None:
        """Take note of somebody who wants out."""
        if worker in self.view.members and worker not in self.wants_out:
            self.wants_out.append(worker)

    def heard_from(self, worker: int) -> None:
        """A worker has reported, so it has read its welcome."""
        self._welcomes.pop(worker, None)

    def part(self, worker: int) -> bool:
        """Take note of a farewell; return whether it is the first from this worker."""
        if worker in self._parted:
            return False
        self._parted.append(worker)
        self._tickets[worker] = self._tickets.get(worker, 0) + 1
        return True

    def seen(self, message: m.ViewSeen) -> None:
        """A shard has adopted a view."""
        if message.number == self.view.number and message.shard in self._unseen:
            self._unseen.remove(message.shard)

    def change(
        self,
        start_step: int,
        cursor: Cursor,
        first_round: int,
        admitted: tuple[int, ...] = (),
        leaving: tuple[int, ...] = (),
        gone: tuple[int, ...] = (),
    ) -> None:
        """Make the next view."""
        old = self.view
        members = tuple(sorted({*old.members, *admitted} - {*leaving, *gone}))
        leavers = tuple(sorted({*old.leavers, *leaving} - {*gone, *self._parted}))
        first_rounds = {worker: old.first_rounds.get(worker, 0) for worker in (*members, *leavers)}
        first_rounds |= dict.fromkeys(admitted, first_round)
        self.view = View(old.number + 1, members, leavers, start_step, cursor, first_rounds)
        self._unseen = list(range(self._num_shards))
        for worker in (*leaving, *gone):
            self.first_steps.pop(worker, None)
            self._welcomes.pop(worker, None)
            self.wants_out = [other for other in self.wants_out if other != worker]
        self._parted = [worker for worker in self._parted if worker not in admitted]

    def welcome(self, worker: int, welcome: m.Welcome) -> None:
        """Let a worker of the present view in, from the welcome's step on."""
        del self.joining[worker]
        self.first_steps[worker] = welcome.step
        self._welcomes[worker] = welcome

    def news(self) -> list[m.Send]:
        """Return the present view for everybody, and the welcomes not yet taken up."""
        known = [m.worker_address(worker) for worker in self.view.everyone if worker not in self._welcomes]
        sends = self.unheard() + [m.Send(to, m.NewView(view=self.view)) for to in known]
        return sends + [m.Send(m.worker_address(worker), welcome) for worker, welcome in sorted(self._welcomes.items())]

    def unheard(self) -> list[m.Send]:
        """Return the present view for the shards that have not confirmed it."""
        return [m.Send(m.shard_address(shard), m.NewView(view=self.view)) for shard in self._unseen]

    def state_dict(self) -> dict[str, Any]:
        """Return the membership as plain data."""
        return dump(self, self._FIELDS)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        load(self, self._FIELDS, state)

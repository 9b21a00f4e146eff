"""Arrivals at one block: a push is applied when it comes; each worker pulls what has changed since it last looked."""

from __future__ import annotations

from typing import Any

import msgspec

from raysync.address import Address
from raysync.control.view import View
from raysync.engine import messages as m
from raysync.engine.effects import Effects, Send
from raysync.engine.ports import Probe
from raysync.engine.server.block import ServerBlock
from raysync.engine.server.ledger import Ledger


class ArrivalLedger(Ledger):
    """The ledger of strategies whose workers keep clocks of their own; the clock stands where rounds have theirs."""

    def __init__(self, index: int, owner: Address, probe: Probe) -> None:
        super().__init__(index, owner, probe)
        self.updates: dict[Address, m.Update] = {}
        """What each worker was sent last."""
        self._fetched: dict[Address, int] = {}
        """The clock from which each worker started to look."""

    def on_push(self, push: m.Push, block: ServerBlock, view: View) -> Effects:
        self._probe("shard.received")
        if push.round > self.applied.get(push.sender, -1):
            block.absorb(push, max(1, len(view.members)))  # none: the last leaver
            self.applied[push.sender] = push.round
            self._probe("shard.closed")
        return [Send(push.sender, m.Ack(block=self.index, round=push.round))]

    def on_question(self, question: m.HasPush, block: ServerBlock, view: View) -> Effects:
        is_applied = question.round <= self.applied.get(question.sender, -1)
        answer = m.Ack if is_applied else m.NeedPush
        return [Send(question.sender, answer(block=self.index, round=question.round))]

    def on_pull(self, pull: m.Pull, block: ServerBlock, view: View) -> Effects:
        if pull.sender not in self._fetched:
            return []
        last = self.updates.get(pull.sender)
        if last is None or last.round < pull.round:
            last = self.updates[pull.sender] = block.difference(pull)
        return [Send(pull.sender, last)] if last.round == pull.round else []

    def on_view(self, block: ServerBlock | None, view: View) -> Effects:
        super().on_view(block, view)
        self._fetched = {worker: clock for worker, clock in self._fetched.items() if worker in view.here}
        self.updates = {worker: last for worker, last in self.updates.items() if worker in view.here}
        return []

    def state(self, asked: m.OfRound, block: ServerBlock, view: View) -> m.State:
        if self._fetched.get(asked.sender) != asked.round:
            block.begin(asked.sender)
            self._fetched[asked.sender] = asked.round
        return m.State(
            view=view.number,
            block=self.index,
            round=asked.round,
            payload=block.whole(asked.sender),
            applied_round=self.applied.get(asked.sender, -1),
        )

    def state_dict(self) -> dict[str, Any]:
        plain = {str(to): msgspec.to_builtins(update, builtin_types=(bytes,)) for to, update in self.updates.items()}
        fetched = {str(worker): clock for worker, clock in self._fetched.items()}
        return {**super().state_dict(), "updates": plain, "fetched": fetched}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._fetched = {Address.parse(worker): clock for worker, clock in state["fetched"].items()}
        self.updates = {
            Address.parse(worker): msgspec.convert(update, m.Update, builtin_types=(bytes,))
            for worker, update in state["updates"].items()
        }

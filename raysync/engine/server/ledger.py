"""The port between a shard and what becomes of pushes to one block; and the ledgers there are."""

from __future__ import annotations

from typing import Any

import msgspec

from raysync.address import Address
from raysync.control.view import View
from raysync.engine import messages as m
from raysync.engine.effects import Effects, Send
from raysync.engine.ports import Probe
from raysync.engine.server.block import ServerBlock
from raysync.engine.server.mirror import plain


class Ledger:
    """What has happened to one block: what was applied, who has been told, who waits to be."""

    def __init__(self, index: int, owner: Address, probe: Probe) -> None:
        self.index, self._owner, self._probe = index, owner, probe
        self.round = -1
        """The last round closed; -1 where there are no rounds."""
        self.applied: dict[Address, int] = {}
        """The last round (or clock) of each worker that is part of the block."""
        self._handed: list[Address] = []
        self._fetches: dict[Address, m.Fetch] = {}

    @property
    def begun(self) -> int:
        """The last round that anybody has spoken of."""
        return self.round

    # Messages of workers; the block may only be missing where `on_fetch` is asked

    def on_fetch(self, fetch: m.Fetch, block: ServerBlock | None, view: View) -> Effects:
        """Send a newcomer the block, once it is as the newcomer must see it."""
        self._fetches[fetch.sender] = fetch
        if block is None:
            # The first member's values are taken: which of them asks first must not matter.
            is_first = fetch.sender == min(view.everyone)
            return [Send(fetch.sender, m.NeedInit(block=self.index))] if is_first else []
        return self.answer_fetches(block, view)

    def on_push(self, push: m.Push, block: ServerBlock, view: View) -> Effects:
        """Take in a worker's contribution."""
        raise NotImplementedError

    def on_question(self, question: m.HasPush, block: ServerBlock, view: View) -> Effects:
        """Tell a worker what became of its push: the answer it missed, or that the push never came; while the push
        waits for others there is nothing to tell.
        """
        raise NotImplementedError

    def on_pull(self, pull: m.Pull, block: ServerBlock, view: View) -> Effects:
        """Send a worker what has changed for it."""
        raise NotImplementedError

    def on_handover(self, handover: m.Handover, block: ServerBlock) -> Effects:
        """Keep a leaver's residual, once."""
        if handover.sender not in self._handed:
            block.inherit(handover)
            self._handed.append(handover.sender)
        return [Send(handover.sender, m.Ack(block=self.index, round=self.round))]

    # The shard's

    def on_view(self, block: ServerBlock | None, view: View) -> Effects:
        """Forget whoever is out, and do what their absence makes possible."""
        self._fetches = {}
        self._handed = [worker for worker in self._handed if worker in view.everyone]
        return []

    def answer_fetches(self, block: ServerBlock, view: View) -> Effects:
        """Send the block to the newcomers that can have it now."""
        sends: Effects = []
        for worker, fetch in sorted(self._fetches.items()):
            if self._can_have(fetch):
                self._forget_push(worker)
                sends.append(Send(worker, self.state(fetch, block, view)))
                del self._fetches[worker]
        return sends

    def state(self, asked: m.OfRound, block: ServerBlock, view: View) -> m.State:
        """Return the block in full for one worker."""
        raise NotImplementedError

    def _forget_push(self, worker: Address) -> None:
        """A worker begins anew with what it is sent: what it had pushed to an open round it pushes again."""

    def _can_have(self, fetch: m.Fetch) -> bool:
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return everything this ledger has said or promised; pushes of an open round are not promises."""
        applied = {str(worker): round for worker, round in self.applied.items()}
        return {"round": self.round, "applied": applied, "handed": [str(worker) for worker in self._handed]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.round = state["round"]
        self.applied = {Address.parse(worker): round for worker, round in state["applied"].items()}
        self._handed = [Address.parse(worker) for worker in state["handed"]]

    # What is not promised, for one that follows the shard

    def open_state(self) -> dict[str, Any]:
        """Return what has come and is not part of the block yet."""
        return {"fetches": [plain(fetch) for fetch in self._fetches.values()]}

    def load_open(self, state: dict[str, Any]) -> None:
        """Continue from that."""
        fetches = [msgspec.convert(fetch, m.Fetch, builtin_types=(bytes,)) for fetch in state["fetches"]]
        self._fetches = {fetch.sender: fetch for fetch in fetches}

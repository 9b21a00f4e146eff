"""Rounds of one block: pushes are kept until every worker still here has sent its own, then applied once, together."""

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
from raysync.engine.server.mirror import plain
from raysync.errors import ProtocolError

_REMEMBERED_ROUNDS = 3
"""A member is at most two rounds behind; one more for good measure. Leavers may be further behind."""


class RoundLedger(Ledger):
    """The ledger of lock-step strategies."""

    def __init__(self, index: int, owner: Address, probe: Probe) -> None:
        super().__init__(index, owner, probe)
        self.pushes: dict[Address, m.Push] = {}
        """Those of the open round."""
        self.updates: dict[int, m.Update] = {}
        """Recent results by round."""
        self._is_open = False
        """Whether the next round has been mentioned."""
        self._participants: tuple[Address, ...] | None = None
        """Who contributes to it; None for all."""
        self._missing: set[Address] | None = None
        """Whose push it still waits for; None until that is worked out."""

    @property
    def begun(self) -> int:
        return self.round + (self._is_open or bool(self.pushes))

    def on_fetch(self, fetch: m.Fetch, block: ServerBlock | None, view: View) -> Effects:
        caught_up = self._catch_up(fetch, block, view) if block is not None else []
        return caught_up + super().on_fetch(fetch, block, view)

    def on_push(self, push: m.Push, block: ServerBlock, view: View) -> Effects:
        self._probe("shard.received")
        if push.round == self.round + 1:
            block.check(push.payload)
            self.pushes[push.sender] = push  # a retry brings the same bytes
            if self._missing is not None:
                self._missing.discard(push.sender)
        return self._open(push, block, view) or self._again(push, block, view)

    def on_question(self, question: m.HasPush, block: ServerBlock, view: View) -> Effects:
        if question.sender in self.pushes and question.round == self.round + 1:
            return []
        if question.round <= self.round:
            return self._again(question, block, view)
        return [Send(question.sender, m.NeedPush(block=self.index, round=question.round))]

    def on_pull(self, pull: m.Pull, block: ServerBlock, view: View) -> Effects:
        return self._open(pull, block, view) or self._again(pull, block, view)

    def on_view(self, block: ServerBlock | None, view: View) -> Effects:
        super().on_view(block, view)
        self._missing = None
        return self._try_close(block, view)

    def state(self, asked: m.OfRound, block: ServerBlock, view: View) -> m.State:
        return m.State(
            view=view.number,
            block=self.index,
            round=self.round,
            payload=block.whole(),
            applied_round=self.applied.get(asked.sender, -1),
        )

    def _forget_push(self, worker: Address) -> None:
        if self.pushes.pop(worker, None) is not None:
            self._missing = None

    def _can_have(self, fetch: m.Fetch) -> bool:
        return self.round >= fetch.round

    def _catch_up(self, fetch: m.Fetch, block: ServerBlock, view: View) -> Effects:
        """Close what a newcomer waits for and no worker alive can contribute to; old hands bring up their rounds
        themselves.
        """
        sends: Effects = []
        while self.round < fetch.round:
            before = self.round
            if not view.contributors(None, before + 1):
                self._mention(())
            elif before + 1 == fetch.round:
                self._mention(fetch.participants)
            sends += self._try_close(block, view)
            if self.round == before:
                break
        return sends

    def _mention(self, participants: tuple[Address, ...] | None) -> None:
        """Take note of the next round and of who contributes to it."""
        if not self._is_open or participants != self._participants:
            self._is_open, self._participants, self._missing = True, participants, None

    def _open(self, message: m.Push | m.Pull, block: ServerBlock, view: View) -> Effects:
        """Take note of the round a message belongs to, and close it if it can be closed."""
        if message.round <= self.round:
            return []
        if message.round != self.round + 1:
            problem = f"block {self.index} is at round {self.round}, {message.sender.spoken} is at {message.round}"
            raise ProtocolError(str(self._owner), problem)
        self._mention(message.participants)
        return self._try_close(block, view)

    def _again(self, message: m.Push | m.HasPush | m.Pull, block: ServerBlock, view: View) -> Effects:
        """Repeat the result of a round to a worker that has missed it; the whole block to one too far behind."""
        if message.round > self.round:
            return []
        return [Send(message.sender, self.updates.get(message.round) or self.state(message, block, view))]

    def _try_close(self, block: ServerBlock | None, view: View) -> Effects:
        """Close the open round once every worker still here has pushed; what was pushed counts even if its sender has
        died since.
        """
        if not self._is_open or block is None or not self._is_complete(view):
            return []
        round, pushes = self.round + 1, self.pushes
        update = block.aggregate(pushes, round)
        self.applied.update(dict.fromkeys(pushes, round))
        self.round = round
        self._is_open, self._participants, self._missing, self.pushes = False, None, None, {}
        # Who contributes to a round has seen the one before; only others may still ask for older results.
        is_known_to_all = view.here <= pushes.keys()
        remembered = 1 if is_known_to_all else _REMEMBERED_ROUNDS
        self.updates = {r: u for r, u in (self.updates | {round: update}).items() if r > round - remembered}
        self._probe("shard.closed")
        sends = [Send(worker, update) for worker in view.everyone]
        return sends + self.answer_fetches(block, view)

    def _is_complete(self, view: View) -> bool:
        if self._missing is None:
            self._missing = view.contributors(self._participants, self.round + 1) - self.pushes.keys()
        return not self._missing

    def state_dict(self) -> dict[str, Any]:
        updates = {key: plain(update) for key, update in self.updates.items()}
        return {**super().state_dict(), "updates": updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        saved = state["updates"].items()
        self.updates = {key: msgspec.convert(update, m.Update, builtin_types=(bytes,)) for key, update in saved}

    def open_state(self) -> dict[str, Any]:
        who = None if self._participants is None else [str(worker) for worker in self._participants]
        pushes = [plain(push) for push in self.pushes.values()]
        return {**super().open_state(), "is_open": self._is_open, "participants": who, "pushes": pushes}

    def load_open(self, state: dict[str, Any]) -> None:
        super().load_open(state)
        who = state["participants"]
        self._is_open, self._missing = state["is_open"], None
        self._participants = None if who is None else tuple(map(Address.parse, who))
        pushes = [msgspec.convert(push, m.Push, builtin_types=(bytes,)) for push in state["pushes"]]
        self.pushes = {push.sender: push for push in pushes}

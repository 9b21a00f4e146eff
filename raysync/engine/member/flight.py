"""A round that the worker does not wait for: what it pushed, what has come of it, how it lands between two steps."""

from __future__ import annotations

from collections.abc import Iterable

from raysync.engine import messages as m
from raysync.engine.effects import Effects
from raysync.engine.member.courier import Courier
from raysync.engine.member.round import Owed, WorkerRound
from raysync.engine.training.shared_vector import SharedVector

_PATIENCE_S = 30.0
"""After so long without a word the worker asks; while it trains nobody else notices that something is lost."""


class Flight:
    """One round on its way. Results wait until all blocks have come, so that what is visible is always of one round."""

    def __init__(
        self, decision: m.Decision, owed: Owed | None, blocks: Iterable[int], weight: float, lr: float
    ) -> None:
        self.decision, self._owed, self._weight, self._lr = decision, owed, weight, lr
        self.waiting = set(blocks)
        self._came: dict[int, m.Update | m.State] = {}
        self._heard_s: float | None = None
        self._patience_s = _PATIENCE_S

    @property
    def round(self) -> int:
        """Its number."""
        return self.decision.round

    def push(self, courier: Courier, round: WorkerRound, blocks: Iterable[int]) -> Effects:
        """Return the pushes of these blocks; asked again, the same bytes, as if nothing had been computed since."""
        return round.push(courier, self._owed, blocks, self._lr, self._weight)

    def expects(self, block: int, round: int) -> bool:
        """Return whether a block's outcome of a round is waited for."""
        return block in self.waiting and round == self.round

    def owes(self, message: m.NeedPush) -> bool:
        """Return whether a push that a shard asks for is this round's."""
        return self._owed is not None and self.expects(message.block, message.round)

    def came(self, result: m.Update | m.State) -> None:
        """A block's outcome has come; it is kept until all have."""
        self._came[result.block] = result
        self.waiting.discard(result.block)
        self._heard_s, self._patience_s = None, _PATIENCE_S

    def questions(self, courier: Courier) -> Effects:
        """Ask for what has not come."""
        if self._owed is not None:
            return [*courier.questions(self.waiting, self.round)]
        return [*courier.pulls(self.waiting, self.decision)]

    def asks(self, courier: Courier, now_s: float) -> Effects:
        """Ask for what has not come if nothing has for long, ever more rarely: on a slow line it is only slow."""
        if self._heard_s is None:
            self._heard_s = now_s
        if now_s - self._heard_s < self._patience_s:
            return []
        self._heard_s, self._patience_s = now_s, 2 * self._patience_s
        return self.questions(courier)

    def land(self, round: WorkerRound, shared: SharedVector) -> None:
        """Make visible what has come."""
        for block in sorted(self._came):
            result = self._came[block]
            if isinstance(result, m.State):
                shared.load(result)
            else:
                round.apply(result, self.decision.payload_kind)
        round.purge(self.round)

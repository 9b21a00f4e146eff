"""One worker's part in a round: the decision that called for it, what the worker owes the shards, what it waits
for from them, and the bytes of both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from raysync.address import Address
from raysync.engine import messages as m
from raysync.engine.effects import Effects, Send, Stream
from raysync.engine.exchange import exchange_of
from raysync.engine.member.courier import Courier
from raysync.engine.pacing import pacing_of
from raysync.engine.ports import Probe, no_probe
from raysync.engine.training.shared_vector import SharedVector
from raysync.spec import JobSpec
from raysync.sync.base import PayloadKind

_REMEMBERED = 256
"""So many decisions are remembered: more than are made between two looks of the controller."""


_LAST = 4
"""So many steps may lie between two members, at the most, where decisions run ahead."""


class Owed(NamedTuple):
    """A round to which a worker owes its pushes."""

    round: int
    participants: tuple[Address, ...] | None
    kind: PayloadKind


class WorkerRound:
    """The blocks a worker waits for, and the updates that came before it did."""

    def __init__(self, address: Address, spec: JobSpec, shared: SharedVector, probe: Probe = no_probe) -> None:
        self._address, self._shared, self._probe = address, shared, probe
        self._payload = exchange_of(spec).payload
        self.pushes_first = pacing_of(spec).applies_on_arrival
        """Whether the worker pushes before it reports, since pushes are applied on arrival."""
        self.waiting: set[int] = set()
        self.decision: m.Decision | None = None
        """The one being carried out."""
        self._decisions: dict[int, m.Decision] = {}
        """Those about steps still to come."""
        self._past: deque[m.Decision] = deque(maxlen=_REMEMBERED)
        """Those that were carried out: a new coordinator may ask."""
        self._early: dict[tuple[int, int], m.Update] = {}
        self.samples = 0
        """Read since the last synchronisation: the worker's weight in the next."""
        self.bytes_up = self.bytes_down = 0
        self.dense_bytes = 0
        """What the same updates would have weighed uncompressed."""

    # Decisions

    def decided(self, decision: m.Decision, step: int) -> None:
        """Take note of a decision, unless it is about a step that is over."""
        if decision.step >= step and self._address not in decision.late:
            self._decisions[decision.step] = decision

    def take_decision(self, step: int) -> m.Decision | None:
        """Return the decision about a step, if it has come, and carry it out from now on."""
        decision = self._decisions.get(step)
        if decision is not None:
            self.decision = decision
            self._past.append(decision)
            self._decisions = {later: other for later, other in self._decisions.items() if later > step}
        return decision

    def past(self, after_step: int) -> tuple[m.Decision, ...]:
        """Return the decisions about steps after one, as far as they are remembered, and those still to be carried out;
        in any case the last few, which some other member may have missed.
        """
        known = sorted([*self._past, *self._decisions.values()], key=lambda decision: decision.step)
        since = min([after_step, *(decision.step - 1 for decision in known[-_LAST:])])
        return tuple(decision for decision in known if decision.step > since)

    def forget(self) -> None:
        """Begin anew: no decision from before is carried out; that it was made is not forgotten."""
        self._decisions, self.decision = {}, None

    # What the worker owes

    def owed(self, step: int, is_acking: bool) -> Owed | None:
        """Return what the worker owes pushes to: its step, while it waits for acknowledgements, or the round decided
        on; None where it owes nothing.
        """
        if is_acking:
            return Owed(step, None, self._payload)
        decision = self.decision
        if decision is None or self.pushes_first:
            return None
        owes = decision.participants is None or self._address in decision.participants
        return Owed(decision.round, decision.participants, decision.payload_kind) if owes else None

    def push(
        self, courier: Courier, owed: Owed | None, blocks: Iterable[int], lr: float, weight: float | None = None
    ) -> Effects:
        """Return the pushes of these blocks that are owed: the first leaves before the second is encoded. They weigh
        what has been read up to now, unless it is said.
        """
        if owed is None:
            return []
        weight = float(self.samples) if weight is None else weight
        stream = self._pushed(courier.pushes([*blocks], *owed, weight, lr))
        # Who has missed so much that results are already here must not take them in before it has pushed.
        return [*stream] if any(round == owed.round for round, _ in self._early) else [Stream(stream)]

    def _pushed(self, sends: Iterator[Send]) -> Iterator[Send]:
        self._probe("worker.encoding")
        for send in sends:
            self.bytes_up += send.message.payload_bytes
            self.dense_bytes += 4 * self._shared.blocks[send.message.block].size  # type: ignore[attr-defined]
            yield send
        self._probe("worker.encoded")

    # What it waits for

    def set_aside(self, update: m.Update) -> None:
        """Keep an update of a round whose decision has not come yet."""
        self._early[update.round, update.block] = update

    def early(self, round: int) -> list[m.Update]:
        """Return what came early of a round, in order of blocks."""
        return [self._early.pop(key) for key in sorted(key for key in self._early if key[0] == round)]

    def take(self, update: m.Update, decision: m.Decision) -> bool:
        """Apply an update of the round decided on; return whether it was waited for."""
        if update.round != decision.round or update.block not in self.waiting:
            return False
        self.apply(update, decision.payload_kind)
        return True

    def apply(self, update: m.Update, contributed: PayloadKind) -> None:
        """Take in the result of a round, unless it is known, and count its bytes."""
        if update.round > self._shared.rounds[update.block]:
            self._shared.apply(update, contributed)
            self.bytes_down += update.payload_bytes
            self.dense_bytes += 4 * self._shared.blocks[update.block].size

    def replay(self, round: int, contributed: PayloadKind) -> set[int]:
        """Take in, in order, what has come of the rounds up to this one; return the blocks of which some is missing."""
        lacking = set()
        for index in range(len(self._shared.blocks)):
            for number in range(self._shared.rounds[index] + 1, round + 1):
                update = self._early.get((number, index))
                if update is None:
                    lacking.add(index)
                    break
                self._shared.apply(update, contributed)
                self.bytes_down += update.payload_bytes
                self.dense_bytes += 4 * self._shared.blocks[index].size
        self._early = {key: update for key, update in self._early.items() if key[0] > round}
        return lacking

    def over(self, round: int) -> None:
        """A round is over: forget what else came of it, and count samples anew."""
        self.purge(round)
        self.samples = 0

    def purge(self, round: int) -> None:
        """Forget what else came of a round."""
        self._early = {key: update for key, update in self._early.items() if key[0] > round}

    def metrics(self) -> dict[str, float]:
        """Return what has been sent so far, and what is still to be."""
        return {
            "comm/bytes_up": float(self.bytes_up),
            "comm/bytes_down": float(self.bytes_down),
            "comm/dense_bytes": float(self.dense_bytes),
            "feedback/residual_norm": self._shared.feedback.norm(),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return what is counted: between two rounds nothing else is left."""
        last = msgspec.to_builtins([*self._past][-1:])
        return {"samples": self.samples, "bytes": [self.bytes_up, self.bytes_down, self.dense_bytes], "last": last}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.samples = state["samples"]
        self.bytes_up, self.bytes_down, self.dense_bytes = state["bytes"]
        self._past.clear()
        self._past.extend(msgspec.convert(state.get("last", []), list[m.Decision], strict=False))

"""A worker's side of the shared vector: what was last visible, block by block, and what it has not yet sent."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from raysync.blocks import Block, Content, assign, cut
from raysync.compress import Compressor, Identity, verbatim
from raysync.compress.base import all_finite, refuse_non_finite
from raysync.compress.feedback import Feedback
from raysync.compress.in_place import values_of
from raysync.compress.registry import decode, decode_add
from raysync.compress.wire import verify
from raysync.engine import messages as m
from raysync.engine.exchange import exchange_of
from raysync.engine.training.replica import Replica
from raysync.errors import PayloadError
from raysync.spec import JobSpec
from raysync.sync.base import PayloadKind


class SharedVector:
    """Blocks of one replica, the visible copy, and the residuals."""

    def __init__(self, spec: JobSpec, replica: Replica) -> None:
        self._replica = replica
        self.blocks: tuple[Block, ...] = cut(replica.regions, spec.scale.block_bytes)
        self.owners = assign(self.blocks, spec.scale.shards)
        self.num_elements = sum(block.size for block in self.blocks)
        self.feedback = Feedback(spec.compression.error_feedback)
        self.rounds = [-1] * len(self.blocks)
        """The last round each block has seen."""
        # Without local steps the visible parameters are the ones trained; otherwise a copy remembers them.
        self._trains_visible = exchange_of(spec).server_steps
        self.visible = replica.flat if self._trains_visible else replica.flat.clone()
        self.visible_extras = replica.extras()
        self._spare = self.visible.new_empty(0)
        self._pushed: Tensor | None = None
        """While a round is on its way that the worker does not wait for: its parameters when it pushed."""
        self._pushed_extras = self.visible_extras

    def seen(self, block: Block) -> Tensor:
        """Return the visible values of a block, as a view."""
        if block.content is Content.PARAMETER:
            return self.visible[block.start : block.stop]
        return self.visible_extras[block.start - len(self.visible) : block.stop - len(self.visible)]

    def payload(self, block: Block, round: int, kind: PayloadKind, codec: Compressor, seed: int) -> bytes:
        """Return the encoded contribution to a block of parameters: gradient, or displacement from the visible values,
        plus the residual. Buffers and moments are sent as they are.
        """
        if block.content is not Content.PARAMETER:
            return verbatim.encode(self._own_extras(block))
        if self.feedback.is_pending((block.index, kind), round):
            update = self.seen(block)
        elif kind == "gradient":
            update = self._replica.grad[block.start : block.stop]
        else:
            own = self._replica.flat if self._pushed is None else self._pushed
            update = torch.sub(own[block.start : block.stop], self.seen(block), out=self._scratch(block))
        try:
            return self.feedback.squeeze((block.index, kind), round, update, codec, seed)
        except PayloadError as error:
            where = f"block {block.index} ({self._replica.describe(block)})"
            raise PayloadError(f"{where}: {error.problem}") from None

    def not_finite(self) -> str | None:
        """Return which block of the local parameters holds a NaN or an infinity, and what to do; None if none does."""
        if self._replica.is_finite():
            return None
        flat = self._replica.flat
        blocks = (block for block in self.blocks if block.content is Content.PARAMETER)
        block = next(block for block in blocks if not all_finite(flat[block.start : block.stop]))
        return f"block {block.index} ({self._replica.describe(block)}): {refuse_non_finite().problem}"

    def _scratch(self, block: Block) -> Tensor:
        """Return room for a block's numbers, until the next block's are written there."""
        if len(self._spare) < block.size:
            self._spare = self.visible.new_empty(block.size)
        return self._spare[: block.size]

    def initial(self, block: Block) -> bytes:
        """Return this replica's own values of a block, exactly."""
        if block.content is not Content.PARAMETER:
            return verbatim.encode(self._own_extras(block))
        try:
            return Identity().encode(self._replica.flat[block.start : block.stop], 0)
        except PayloadError:
            raise PayloadError(f"{self._replica.describe(block)}: model() gives it a NaN or an infinity") from None

    def residual_payloads(self, block: int) -> dict[PayloadKind, bytes]:
        """Return what was never sent of a block, exactly."""
        kinds: tuple[PayloadKind, ...] = ("gradient", "displacement")
        rests = {kind: self.feedback.residual((block, kind)) for kind in kinds}
        return {kind: Identity().encode(rest, 0) for kind, rest in rests.items() if rest is not None}

    def apply(self, update: m.Update, contributed: PayloadKind) -> None:
        """Take in the result of a round, and commit the residual of the push it acknowledges."""
        block = self.blocks[update.block]
        if block.content is not Content.PARAMETER:
            self.seen(block).copy_(verbatim.decode(update.payload, block.size))
        elif update.payload_kind == "values":
            self._copy(update.payload, self.seen(block))
        elif update.payload_kind == "gradient":
            self._copy(update.payload, self._replica.grad[block.start : block.stop])
        else:
            decode_add(update.payload, self.seen(block))
        self.feedback.commit((block.index, contributed), update.round)
        self.rounds[block.index] = update.round

    def _copy(self, payload: bytes, out: Tensor) -> None:
        verify(payload)
        values = values_of(payload, len(out))
        out.copy_(decode(payload, len(out)) if values is None else values)

    def load(self, state: m.State) -> None:
        """Replace the visible values of a block, and settle what was still on its way to it."""
        block = self.blocks[state.block]
        self.overwrite(state.block, state.payload)
        self.rounds[block.index] = state.round
        for key, round in self.feedback.pending().items():
            if key[0] == block.index and round <= state.applied_round:
                self.feedback.commit(key, round)
            elif key[0] == block.index:
                self.feedback.recall(key, self.seen(block))

    def overwrite(self, index: int, payload: bytes) -> None:
        """Replace the visible values of a block."""
        block = self.blocks[index]
        read = decode if block.content is Content.PARAMETER else verbatim.decode
        self.seen(block).copy_(read(payload, block.size))

    def take_off(self) -> None:
        """A round begins that the worker does not wait for: what it pushes, also if asked again, is what it is now."""
        self._pushed, self._pushed_extras = self._replica.flat.clone(), self._replica.extras()

    def land(self) -> None:
        """That round has come: keep what the worker has done since on top of what is visible now. Buffers and moments
        become the mean: sums of both could be negative where none may be.
        """
        assert self._pushed is not None
        self._replica.flat.sub_(self._pushed).add_(self.visible)
        self.give_up()
        self.adopt_extras()

    def give_up(self) -> None:
        """Expect nothing more of a round on its way."""
        self._pushed = None

    def adopt(self) -> None:
        """Make the visible values the local ones."""
        if not self._trains_visible:
            self._replica.flat.copy_(self.visible)
        self.adopt_extras()

    def mend_extras(self) -> None:
        """Put what all see in place of buffers and moments that a batch has made other than finite."""
        own = self._replica.extras()
        self._replica.load_extras(torch.where(own.isfinite(), own, self.visible_extras))

    def drop_progress(self, round: int | None = None) -> None:
        """Go back to what all see, with moments that begin anew: what the replica has come to since is not finite. What
        was already taken for a round's push is taken back. With a round on its way, go back to what was pushed.
        """
        for key, pending in self.feedback.pending().items():
            block = self.blocks[key[0]]
            if pending == round:
                update = self._replica.flat[block.start : block.stop] - self.seen(block)
                self.feedback.withdraw(key, update)
        self._replica.flat.copy_(self.visible if self._pushed is None else self._pushed)
        self._replica.reset_optimizer()
        self.mend_extras()

    def hold_back(self, kind: PayloadKind) -> None:
        """Keep for the next round what this one should have carried, before the others' state is taken over."""
        if kind == "displacement" and not self._replica.is_finite():
            self.drop_progress()
            return
        for block in self.blocks:
            if block.content is Content.PARAMETER:
                own = self._replica.grad if kind == "gradient" else self._replica.flat
                update = own[block.start : block.stop]
                self.feedback.hold_back(
                    (block.index, kind), update if kind == "gradient" else update - self.seen(block)
                )
        if kind == "gradient":
            self._replica.grad.zero_()

    def adopt_extras(self) -> None:
        """Make the visible buffers and moments the local ones."""
        self._replica.load_extras(self.visible_extras)

    def _own_extras(self, block: Block) -> Tensor:
        start, stop = block.start - len(self.visible), block.stop - len(self.visible)
        return self._replica.read_extras(start, stop) if self._pushed is None else self._pushed_extras[start:stop]

    def state_dict(self) -> dict[str, Any]:
        """Return visible values, rounds and residuals."""
        return {
            "visible": None if self._trains_visible else self.visible.clone(),
            "visible_extras": self.visible_extras.clone(),
            "rounds": list(self.rounds),
            "feedback": self.feedback.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        if state["visible"] is not None:  # else it is the replica's own vector
            self.visible.copy_(state["visible"])
        self.visible_extras.copy_(state["visible_extras"])
        self.rounds = list(state["rounds"])
        self.feedback.load_state_dict(state["feedback"])

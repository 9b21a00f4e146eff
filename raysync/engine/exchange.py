"""A worker's side of the shared vector: what was last visible, block by block, and what it has not yet sent."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from raysync.compress import Compressor, Identity
from raysync.compress.feedback import Feedback
from raysync.compress.registry import decode, decode_add
from raysync.engine import messages as m
from raysync.engine.replica import Replica
from raysync.errors import PayloadError
from raysync.shard import Block, Role, assign, cut
from raysync.spec import JobSpec
from raysync.sync.base import PayloadKind


class Exchange:
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
        self._trains_visible = spec.strategy.payload == "gradient" and not spec.strategy.relays
        self.visible = replica.flat if self._trains_visible else replica.flat.clone()
        self.visible_extras = replica.extras()

    def seen(self, block: Block) -> Tensor:
        """Return the visible values of a block, as a view."""
        return self._stretch(block, self.visible, self.visible_extras)

    def payload(self, block: Block, round: int, kind: PayloadKind, codec: Compressor, seed: int) -> bytes:
        """Return the encoded contribution to a block: gradient, or displacement from the visible values; plus the
        residual.
        """
        if self.feedback.is_pending((block.index, kind), round):
            update = self.seen(block)
        elif block.role is Role.PARAMETER:
            update = (
                self._replica.grad[block.start : block.stop]
                if kind == "gradient"
                else self._replica.flat[block.start : block.stop] - self.seen(block)
            )
        else:
            update = self._stretch(block, self._replica.flat, self._replica.extras()) - self.seen(block)
        try:
            return self.feedback.squeeze((block.index, kind), round, update, codec, seed)
        except PayloadError as error:
            raise PayloadError(f"block {block.index} ({self._replica.describe(block)}): {error.problem}") from error

    def initial(self, block: Block) -> bytes:
        """Return this replica's own values of a block, exactly."""
        extras = self._replica.extras() if block.role is not Role.PARAMETER else self.visible_extras
        return Identity().encode(self._stretch(block, self._replica.flat, extras), 0)

    def residual_payloads(self, block: int) -> dict[PayloadKind, bytes]:
        """Return what was never sent of a block, exactly."""
        kinds: tuple[PayloadKind, ...] = ("gradient", "delta")
        rests = {kind: self.feedback.residual((block, kind)) for kind in kinds}
        return {kind: Identity().encode(rest, 0) for kind, rest in rests.items() if rest is not None}

    def apply(self, update: m.Update, contributed: PayloadKind) -> None:
        """Take in the result of a round, and commit the residual of the push it acknowledges."""
        block = self.blocks[update.block]
        if update.payload_kind == "gradient":
            self._replica.grad[block.start : block.stop] = decode(update.payload, block.size)
        else:
            decode_add(update.payload, self.seen(block))
        self.feedback.commit((block.index, contributed), update.round)
        self.rounds[block.index] = update.round

    def load(self, state: m.State) -> None:
        """Replace the visible values of a block, and settle what was still on its way to it."""
        block = self.blocks[state.block]
        self.seen(block).copy_(decode(state.payload, block.size))
        self.rounds[block.index] = state.round
        for key, round in self.feedback.pending().items():
            if key[0] == block.index and round <= state.applied_round:
                self.feedback.commit(key, round)
            elif key[0] == block.index:
                self.feedback.recall(key, self.seen(block))

    def adopt(self) -> None:
        """Make the visible values the local ones."""
        if not self._trains_visible:
            self._replica.flat.copy_(self.visible)
        self._replica.load_extras(self.visible_extras)

    def _stretch(self, block: Block, flat: Tensor, extras: Tensor) -> Tensor:
        if block.role is Role.PARAMETER:
            return flat[block.start : block.stop]
        return extras[block.start - len(flat) : block.stop - len(flat)]

    def state_dict(self) -> dict[str, Any]:
        """Return visible values, rounds and residuals."""
        return {
            "visible": self.visible.clone(),
            "visible_extras": self.visible_extras.clone(),
            "rounds": list(self.rounds),
            "feedback": self.feedback.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.visible.copy_(state["visible"])
        self.visible_extras.copy_(state["visible_extras"])
        self.rounds = list(state["rounds"])
        self.feedback.load_state_dict(state["feedback"])

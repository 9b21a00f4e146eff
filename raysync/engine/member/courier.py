"""Words a worker sends to shards: each block's message, addressed to the shard that owns the block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from raysync.address import Address
from raysync.engine import messages as m
from raysync.engine.effects import Send
from raysync.engine.exchange import exchange_of
from raysync.engine.seeds import derive
from raysync.engine.training.shared_vector import SharedVector
from raysync.spec import JobSpec
from raysync.sync.base import PayloadKind


@dataclass(frozen=True)
class Courier:
    """Writes messages under one view's number and one setting of the knobs."""

    sender: Address
    view: int
    spec: JobSpec
    shared: SharedVector
    servers: tuple[Address, ...]
    """Which shard serves each slot."""

    def init(self, block: int) -> Send:
        """Return the worker's own values as a block's first ones."""
        shape = self.shared.blocks[block]
        payload = self.shared.initial(shape)
        return self._to(
            block, m.Init(view=self.view, sender=self.sender, block=block, content=shape.content.value, payload=payload)
        )

    def fetches(self, blocks: Iterable[int], welcome: m.Welcome) -> list[Send]:
        """Return the newcomer's questions."""
        return [
            self._to(
                block,
                m.Fetch(
                    view=self.view,
                    sender=self.sender,
                    block=block,
                    round=welcome.round,
                    participants=welcome.participants,
                ),
            )
            for block in sorted(blocks)
        ]

    def pushes(
        self,
        blocks: Iterable[int],
        round: int,
        participants: tuple[Address, ...] | None,
        kind: PayloadKind,
        weight: float,
        lr: float,
    ) -> Iterator[Send]:
        """Yield the worker's contributions to a round, each encoded as it is asked for; asked again, the same bytes."""
        for block in sorted(blocks):
            push = m.Push(
                view=self.view,
                sender=self.sender,
                block=block,
                round=round,
                participants=participants,
                payload=self._payload(block, round, kind),
                payload_kind=kind,
                weight=weight,
                lr=lr,
            )
            yield self._to(block, push)

    def questions(self, blocks: Iterable[int], round: int) -> list[Send]:
        """Return the question for each block whether the shard has the worker's push."""
        return [
            self._to(block, m.HasPush(view=self.view, sender=self.sender, block=block, round=round))
            for block in sorted(blocks)
        ]

    def pulls(self, blocks: Iterable[int], decision: m.Decision) -> list[Send]:
        """Return requests for the result of a round."""
        return [
            self._to(
                block,
                m.Pull(
                    view=self.view,
                    sender=self.sender,
                    block=block,
                    round=decision.round,
                    participants=decision.participants,
                ),
            )
            for block in sorted(blocks)
        ]

    def handovers(self, blocks: Iterable[int], share: float) -> list[Send]:
        """Return what the worker never sent, for the shards to add."""
        return [
            self._to(
                block,
                m.Handover(
                    view=self.view,
                    sender=self.sender,
                    block=block,
                    share=share,
                    payloads=self.shared.residual_payloads(block),
                ),
            )
            for block in sorted(blocks)
        ]

    def _payload(self, block: int, round: int, kind: PayloadKind) -> bytes:
        shape = self.shared.blocks[block]
        codec = exchange_of(self.spec).codec(self.spec.compression.push_codec(round, 4 * shape.size), kind)
        return self.shared.payload(
            shape, round, kind, codec, derive(self.spec.seed, "push", self.sender.index, round, block)
        )

    def _to(self, block: int, message: m.Message) -> Send:
        return Send(self.servers[self.shared.owners[block]], message)

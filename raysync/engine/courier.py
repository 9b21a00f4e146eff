"""Words a worker sends to shards: each block's message, addressed to the shard that owns the block."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from raysync.compress import Compressor, Identity
from raysync.engine import messages as m
from raysync.engine.exchange import Exchange
from raysync.engine.seeds import derive
from raysync.spec import JobSpec
from raysync.sync.base import PayloadKind


@dataclass(frozen=True)
class Courier:
    """Writes messages under one view's number and one setting of the knobs."""

    worker: int
    view: int
    spec: JobSpec
    exchange: Exchange

    def init(self, block: int) -> m.Send:
        """Return the worker's own values as a block's first ones."""
        shape = self.exchange.blocks[block]
        payload = self.exchange.initial(shape)
        return self._to(
            block, m.Init(view=self.view, worker=self.worker, block=block, role=shape.role.value, payload=payload)
        )

    def fetches(self, blocks: Iterable[int], welcome: m.Welcome) -> list[m.Send]:
        """Return the newcomer's questions."""
        return [
            self._to(
                block,
                m.Fetch(
                    view=self.view,
                    worker=self.worker,
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
        participants: tuple[int, ...],
        kind: PayloadKind,
        weight: float,
        lr: float,
    ) -> list[m.Send]:
        """Return the worker's contributions to a round; asked again, the same bytes."""
        sends = []
        for block in sorted(blocks):
            push = m.Push(
                view=self.view,
                worker=self.worker,
                block=block,
                round=round,
                participants=participants,
                payload=self._payload(block, round, kind),
                payload_kind=kind,
                weight=weight,
                lr=lr,
                pull_ratio=self._pull_ratio,
            )
            sends.append(self._to(block, push))
        return sends

    def pulls(self, blocks: Iterable[int], decision: m.Decision) -> list[m.Send]:
        """Return requests for the result of a round."""
        return [
            self._to(
                block,
                m.Pull(
                    view=self.view,
                    worker=self.worker,
                    block=block,
                    round=decision.round,
                    participants=decision.participants,
                    pull_ratio=self._pull_ratio,
                ),
            )
            for block in sorted(blocks)
        ]

    def handovers(self, blocks: Iterable[int], share: float) -> list[m.Send]:
        """Return what the worker never sent, for somebody else to send."""
        return [
            self._to(
                block,
                m.Handover(
                    view=self.view,
                    worker=self.worker,
                    block=block,
                    share=share,
                    payloads=self.exchange.residual_payloads(block),
                ),
            )
            for block in sorted(blocks)
        ]

    def _payload(self, block: int, round: int, kind: PayloadKind) -> bytes:
        shape = self.exchange.blocks[block]
        codec: Compressor = self.spec.compression.push_codec(round, 4 * shape.size)
        if self.spec.strategy.relays and kind == "delta":
            codec = Identity()  # replicas that share only gradients send all they have when they meet
        return self.exchange.payload(
            shape, round, kind, codec, derive(self.spec.seed, "push", self.worker, round, block)
        )

    @property
    def _pull_ratio(self) -> float | None:
        ratio: float | None = getattr(self.spec.compression.pull, "ratio", None)
        return ratio

    def _to(self, block: int, message: m.Message) -> m.Send:
        return m.Send(m.shard_address(self.exchange.owners[block]), message)

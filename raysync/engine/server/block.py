"""One block of parameters on its shard: the server's values x, what the workers can see y, and the arithmetic of a
round.

    synchronous:   m = weighted mean of decode(c_i), in worker-id order
                   x = outer(x, m);  c = encode(x - y);  y += decode(c)
    asynchronous:  a push steps x on arrival; a pull sends encode(x - y_i), y_i what worker i can see
    relayed:       v = m + rest;  c = encode(v);  rest = v - decode(c);  x and y are left alone

The server's residual is x - y: it stays exact under learning-rate schedules and outer momentum, since what is
compensated is the update.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from raysync.address import Address
from raysync.blocks import Content
from raysync.compress import Compressor, Identity, verbatim
from raysync.compress.registry import add_checked, check, decode
from raysync.engine import messages as m
from raysync.engine.exchange import exchange_of
from raysync.engine.pacing import pacing_of
from raysync.engine.seeds import derive
from raysync.engine.server.averaged import AveragedBlock
from raysync.spec import JobSpec
from raysync.sync.base import PayloadKind


class ParameterBlock:
    """State and arithmetic of one block of parameters; who may push when is the shard's business."""

    content = Content.PARAMETER

    def __init__(self, spec: JobSpec, index: int, values: Tensor) -> None:
        self._spec, self.index = spec, index
        self.x = values.clone()
        self.y = values.clone() if not pacing_of(spec).applies_on_arrival else values.new_empty(0)
        self.seen_by: dict[Address, Tensor] = {}
        """Asynchronous: what each worker can see."""
        self._legacy: dict[str, Tensor] = {}
        """Residuals handed over by leavers, already weighted."""
        self._rest: Tensor | None = None
        self._moments = spec.server_optimizer.state(self.x)

    def aggregate(self, pushes: Mapping[Address, m.Push], round: int) -> m.Update:
        """Apply a round's pushes and return what every worker must add."""
        total = sum(push.weight for push in pushes.values())
        mean = torch.zeros_like(self.x)
        for worker in sorted(pushes):
            add_checked(pushes[worker].payload, mean, pushes[worker].weight / total)
        first = pushes[min(pushes)] if pushes else None
        kind: PayloadKind = first.payload_kind if first else "displacement"
        inherited = self._legacy.pop(kind, None)
        if inherited is not None:
            mean.add_(inherited)
        exchange = exchange_of(self._spec)
        codec = exchange.codec(self._spec.compression.pull_codec(round, 4 * len(self.x)), kind)
        seed = derive(self._spec.seed, "pull", round, self.index)
        has_moved = first is not None or inherited is not None
        handed_on = exchange.answer(self, mean, kind, first.lr if first else None, has_moved)
        if handed_on is not None:
            payload = self._relay(handed_on, codec, seed)
            return m.Update(block=self.index, round=round, payload_kind="gradient", payload=payload)
        payload = self._show(self.y, codec, seed)
        return m.Update(block=self.index, round=round, payload_kind="displacement", payload=payload)

    def absorb(self, push: m.Push, num_workers: int) -> None:
        """Asynchronous: apply one worker's push on arrival, at 1 / num_workers of the step."""
        update = decode(push.payload, len(self.x))
        inherited = self._legacy.pop(push.payload_kind, None)
        if inherited is not None:
            update.add_(inherited, alpha=float(num_workers))
        exchange_of(self._spec).step(self, update, push.lr / num_workers)

    def difference(self, pull: m.Pull) -> m.Update:
        """Asynchronous: return what has changed for one worker since it last looked."""
        codec = self._spec.compression.pull_codec(pull.round, 4 * len(self.x))
        seed = derive(self._spec.seed, "pull", pull.round, self.index, pull.sender.index)
        payload = self._show(self.seen_by[pull.sender], codec, seed)
        return m.Update(block=self.index, round=pull.round, payload_kind="displacement", payload=payload)

    def inherit(self, handover: m.Handover) -> None:
        """Keep a leaver's residual for the next round."""
        rests = {kind: decode(payload, len(self.x)) for kind, payload in handover.payloads.items()}
        for kind, rest in rests.items():
            self._legacy.setdefault(kind, torch.zeros_like(self.x)).add_(rest, alpha=handover.share)

    def check(self, payload: bytes) -> None:
        """Raise `PayloadError` unless a payload arrived whole and is for this block."""
        check(payload, len(self.x))

    def whole(self, worker: Address | None = None) -> bytes:
        """Return the values in full as workers see them; asynchronous: as one worker does."""
        return Identity().encode(self.y if worker is None else self.seen_by[worker], 0)

    def exact(self) -> bytes:
        """Return the server's own values in full."""
        return Identity().encode(self.x, 0)

    def begin(self, worker: Address) -> None:
        """Asynchronous: a worker begins to look, at the values as they are now."""
        self.seen_by[worker] = self.x.clone()

    def keep_only(self, workers: Iterable[Address]) -> None:
        """Forget what others than these workers can see."""
        self.seen_by = {worker: self.seen_by[worker] for worker in workers if worker in self.seen_by}

    def retune(self, spec: JobSpec) -> None:
        """Go on with knobs as they are now."""
        self._spec = spec

    def move(self, gradient: Tensor, lr: float | None) -> None:
        """Let the server's optimizer step along a gradient, at its own rate if none is given."""
        self._spec.server_optimizer.update(self.x, gradient, self._moments, lr)

    def _show(self, seen: Tensor, codec: Compressor, seed: int) -> bytes:
        change = self.x - seen
        payload = codec.encode(change, seed)
        if codec.lossless:
            seen.add_(change)
        else:
            add_checked(payload, seen)
        if not self._spec.compression.error_feedback:
            seen, kept = (seen, self.x) if seen is not self.y else (self.x, seen)
            seen.copy_(kept)
        return payload

    def _relay(self, mean: Tensor, codec: Compressor, seed: int) -> bytes:
        if self._rest is not None:
            mean.add_(self._rest)
        payload = codec.encode(mean, seed)
        if self._spec.compression.error_feedback and not codec.lossless:
            add_checked(payload, mean, -1.0)
            self._rest = mean
        return payload

    def state_dict(self) -> dict[str, Any]:
        """Return everything this block is."""
        return {
            "content": self.content.value,
            "x": self.x.clone(),
            "y": self.y.clone(),
            "seen_by": {str(worker): seen.clone() for worker, seen in self.seen_by.items()},
            "legacy": {kind: rest.clone() for kind, rest in self._legacy.items()},
            "rest": None if self._rest is None else self._rest.clone(),
            "outer": {name: value.clone() for name, value in self._moments.items()},
        }

    @classmethod
    def from_state(cls, spec: JobSpec, index: int, state: dict[str, Any]) -> ParameterBlock:
        """Return the block a saved state describes."""
        block = cls(spec, index, state["x"])
        block.y = state["y"].clone()
        block.seen_by = {Address.parse(worker): seen.clone() for worker, seen in state["seen_by"].items()}
        block._legacy = {kind: rest.clone() for kind, rest in state["legacy"].items()}
        block._rest = None if state["rest"] is None else state["rest"].clone()
        block._moments = {name: value.clone() for name, value in state["outer"].items()}
        return block


ServerBlock = ParameterBlock | AveragedBlock


def make_block(spec: JobSpec, index: int, content: Content, payload: bytes) -> ServerBlock:
    """Return a block of the kind its content asks for, with the first worker's values."""
    if content is Content.PARAMETER:
        return ParameterBlock(spec, index, decode(payload))
    return AveragedBlock(index, content, verbatim.decode(payload))


def load_block(spec: JobSpec, index: int, state: dict[str, Any]) -> ServerBlock:
    """Return the block a saved state describes."""
    content = Content(state["content"])
    return (
        ParameterBlock.from_state(spec, index, state)
        if content is Content.PARAMETER
        else AveragedBlock(index, content, state["x"])
    )

"""One block of parameters on its shard: the server's values x, what the workers can see y, and the arithmetic of a
round.

    synchronous:   m = weighted mean of decode(c_i), in worker-id order
                   x = outer(x, m);  c = encode(x - y);  y += decode(c)
    lossless pull: x = outer(x, m);  c = x;  y is x
    asynchronous:  a push steps x on arrival; a pull sends encode(x - y_i), y_i what worker i can see
    relayed:       v = m + rest;  c = encode(v);  rest = v - decode(c);  x and y are left alone

The server's residual is x - y: it stays exact under learning-rate schedules and outer momentum, since what is
compensated is the update. A lossless pull sends x itself, from where it lies: each round's x is made in a payload of
its own and never changes, so it is sent, repeated and remembered without a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from raysync.address import Address
from raysync.blocks import Content
from raysync.compress import Compressor, Identity, verbatim
from raysync.compress.base import all_finite, refuse_non_finite
from raysync.compress.in_place import Room, values_of
from raysync.compress.registry import add_checked, check, decode
from raysync.engine import messages as m
from raysync.engine.exchange import exchange_of
from raysync.engine.seeds import derive
from raysync.engine.server.averaged import AveragedBlock
from raysync.spec import JobSpec
from raysync.sync.base import PayloadKind

_ZERO = torch.zeros(())


class ParameterBlock:
    """State and arithmetic of one block of parameters; who may push when is the shard's business."""

    content = Content.PARAMETER

    def __init__(
        self, spec: JobSpec, index: int, values: Tensor, seen: Tensor | None = None, means: Room | None = None
    ) -> None:
        """Hold a block's values, and what the workers can see where that is not the same; work out means in a room
        that blocks may share.
        """
        self.index = index
        self.x = values.clone()
        self._y = None if seen is None else seen.clone()
        """None where workers see x."""
        self._room, self._means = Room(), means or Room()
        self._shown: bytes | None = None
        """The payload in which x lies, if it lies in one: then it must not change any more."""
        self._shows_itself = False
        """Whether the round being closed ends with a lossless pull."""
        self.seen_by: dict[Address, Tensor] = {}
        """Asynchronous: what each worker can see."""
        self._legacy: dict[str, Tensor] = {}
        """Residuals handed over by leavers, already weighted."""
        self._rest: Tensor | None = None
        self.retune(spec)
        self._moments = self._outer.state(self.x)

    def retune(self, spec: JobSpec) -> None:
        """Go on with knobs as they are now."""
        self._spec, self._outer, self._exchange = spec, spec.server_optimizer, exchange_of(spec)

    @property
    def y(self) -> Tensor:
        """What the workers can see."""
        return self.x if self._y is None else self._y

    def aggregate(self, pushes: Mapping[Address, m.Push], round: int) -> m.Update:
        """Apply a round's pushes and return what every worker must add, or take over."""
        mean, first = self._mean(pushes), pushes[min(pushes)] if pushes else None
        kind: PayloadKind = first.payload_kind if first else "displacement"
        inherited = self._legacy.pop(kind, None)
        if inherited is not None:
            mean.add_(inherited)
        codec = self._exchange.codec(self._spec.compression.pull_codec(round, 4 * len(self.x)), kind)
        self._shows_itself = codec.lossless
        if not codec.lossless and self._y is None:
            self._y = self.x.clone()
        has_moved = first is not None or inherited is not None
        handed_on = self._exchange.answer(self, mean, kind, first.lr if first else None, has_moved)
        if handed_on is not None:
            payload = self._relay(handed_on, codec, round)
            return m.Update(block=self.index, round=round, payload_kind="gradient", payload=payload)
        if codec.lossless:
            return m.Update(block=self.index, round=round, payload_kind="values", payload=self._whole())
        payload = self._show(self.y, codec, derive(self._spec.seed, "pull", round, self.index))
        return m.Update(block=self.index, round=round, payload_kind="displacement", payload=payload)

    def _mean(self, pushes: Mapping[Address, m.Push]) -> Tensor:
        """Return the weighted mean: zero plus each worker's share, in order."""
        total, is_begun = sum(push.weight for push in pushes.values()), False
        _, mean = self._means.take(len(self.x))
        for worker in sorted(pushes):
            payload, share = pushes[worker].payload, pushes[worker].weight / total
            values = values_of(payload, len(mean))
            if values is None:
                add_checked(payload, mean if is_begun else mean.zero_(), share)
            else:
                torch.add(mean if is_begun else _ZERO, values, alpha=share, out=mean)
            is_begun = True
        return mean if is_begun else mean.zero_()

    def absorb(self, push: m.Push, num_workers: int) -> None:
        """Asynchronous: apply one worker's push on arrival, at 1 / num_workers of the step."""
        update = decode(push.payload, len(self.x))
        inherited = self._legacy.pop(push.payload_kind, None)
        if inherited is not None:
            update.add_(inherited, alpha=float(num_workers))
        self._exchange.step(self, update, push.lr / num_workers)

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

    def put(self, where: Tensor, values: Tensor) -> None:
        """Set some of the values, for the server and for who sees them."""
        self._take_out()
        self.x[where] = values
        if self._y is not None:
            self._y[where] = values

    def move(self, gradient: Tensor, lr: float | None) -> None:
        """Let the server's optimizer step along a gradient, at its own rate if none is given."""
        if not self._shows_itself:
            self._take_out()
            self._outer.update(self.x, gradient, self._moments, lr)
            return
        payload, numbers = self._room.take(len(self.x))
        self._outer.update_into(numbers, self.x, gradient, self._moments, lr)
        if not all_finite(numbers):
            raise refuse_non_finite()
        self.x, self._shown = numbers, payload

    def _place(self) -> bytes:
        """Let x go on in a payload of its own."""
        payload, numbers = self._room.take(len(self.x))
        numbers.copy_(self.x)
        self.x, self._shown = numbers, payload
        return payload

    def _take_out(self) -> None:
        """Let x go on where it may change."""
        if self._shown is not None:
            self.x, self._shown = self.x.clone(), None

    def _whole(self) -> bytes:
        """Return x itself; from now on workers see it."""
        self._y = None
        return self._place() if self._shown is None else self._shown

    def _show(self, seen: Tensor, codec: Compressor, seed: int) -> bytes:
        change = self.x - seen
        self._take_out()
        payload = codec.encode(change, seed)
        if codec.lossless:
            seen.add_(change)
        else:
            add_checked(payload, seen)
        if not self._spec.compression.error_feedback:
            seen, kept = (seen, self.x) if seen is not self.y else (self.x, seen)
            seen.copy_(kept)
        return payload

    def _relay(self, mean: Tensor, codec: Compressor, round: int) -> bytes:
        if self._rest is not None:
            mean.add_(self._rest)
        if codec.lossless:
            self._rest = None
            return self._room.write(mean)
        payload = codec.encode(mean, derive(self._spec.seed, "pull", round, self.index))
        if self._spec.compression.error_feedback:
            add_checked(payload, mean, -1.0)
            self._rest = mean.clone()
        return payload

    def state_dict(self) -> dict[str, Any]:
        """Return everything this block is."""
        return {
            "content": self.content.value,
            "x": self.x.clone(),
            "y": None if self._y is None else self._y.clone(),
            "seen_by": {str(worker): seen.clone() for worker, seen in self.seen_by.items()},
            "legacy": {kind: rest.clone() for kind, rest in self._legacy.items()},
            "rest": None if self._rest is None else self._rest.clone(),
            "outer": {name: value.clone() for name, value in self._moments.items()},
        }

    @classmethod
    def from_state(cls, spec: JobSpec, index: int, state: dict[str, Any], means: Room | None = None) -> ParameterBlock:
        """Return the block a saved state describes."""
        block = cls(spec, index, state["x"], state["y"], means)
        block.seen_by = {Address.parse(worker): seen.clone() for worker, seen in state["seen_by"].items()}
        block._legacy = {kind: rest.clone() for kind, rest in state["legacy"].items()}
        block._rest = None if state["rest"] is None else state["rest"].clone()
        block._moments = {name: value.clone() for name, value in state["outer"].items()}
        return block


ServerBlock = ParameterBlock | AveragedBlock


def make_block(spec: JobSpec, index: int, content: Content, payload: bytes, means: Room | None = None) -> ServerBlock:
    """Return a block of the kind its content asks for, with the first worker's values."""
    if content is Content.PARAMETER:
        return ParameterBlock(spec, index, decode(payload), means=means)
    return AveragedBlock(index, content, verbatim.decode(payload))


def load_block(spec: JobSpec, index: int, state: dict[str, Any], means: Room | None = None) -> ServerBlock:
    """Return the block a saved state describes."""
    content = Content(state["content"])
    if content is Content.PARAMETER:
        return ParameterBlock.from_state(spec, index, state, means)
    return AveragedBlock(index, content, state["x"])

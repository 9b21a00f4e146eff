"""One block on its shard: the server's parameters x, what the workers can see y, and the arithmetic of a round.

    synchronous:   m = weighted mean of decode(c_i), in worker-id order
                   x = outer(x, m);  c = encode(x - y);  y += decode(c)
    asynchronous:  a push steps x on arrival; a pull sends encode(x - y_i), y_i what worker i can see
    relayed:       v = m + rest;  c = encode(v);  rest = v - decode(c);  x and y are left alone

The server's residual is x - y: it stays exact under learning-rate schedules and outer momentum, since what is
compensated is the update.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from raysync.compress import Compressor, Identity
from raysync.compress.registry import add_checked, decode
from raysync.engine import messages as m
from raysync.engine.seeds import derive
from raysync.shard import Role
from raysync.spec import JobSpec
from raysync.sync.base import PayloadKind


class ServerBlock:
    """State and arithmetic of one block; who may push when is the shard's business."""

    def __init__(self, spec: JobSpec, index: int, role: Role, values: Tensor) -> None:
        self._spec, self.index, self.role = spec, index, role
        self.x = values.clone()
        self.y = values.clone() if not spec.strategy.asynchronous else values.new_empty(0)
        self.seen_by: dict[int, Tensor] = {}
        """Asynchronous: what each worker can see."""
        self._legacy: dict[str, Tensor] = {}
        """Residuals handed over by leavers, already weighted."""
        self._rest: Tensor | None = None
        self._moments = spec.server_optimizer.state(self.x)

    def aggregate(self, pushes: Mapping[int, m.Push], round: int) -> m.Update:
        """Apply a round's pushes and return what every worker must add."""
        total = sum(push.weight for push in pushes.values())
        mean = torch.zeros_like(self.x)
        for worker in sorted(pushes):
            add_checked(pushes[worker].payload, mean, pushes[worker].weight / total)
        first = pushes[min(pushes)] if pushes else None
        kind: PayloadKind = first.payload_kind if first else "delta"
        inherited = self._legacy.pop(kind, None)
        if inherited is not None:
            mean.add_(inherited)
        codec = self._spec.compression.pull_codec(round, 4 * len(self.x), first.pull_ratio if first else None)
        if self._spec.strategy.relays and kind == "delta":
            codec = Identity()  # the replicas meet here once in a long while: all of it or nothing
        seed = derive(self._spec.seed, "pull", round, self.index)
        if self._spec.strategy.relays and kind == "gradient" and self.role is Role.PARAMETER:
            return m.Update(
                block=self.index, round=round, payload_kind="gradient", payload=self._relay(mean, codec, seed)
            )
        if first is not None or inherited is not None:
            self._move(mean, first.lr if first else None)
        return m.Update(block=self.index, round=round, payload_kind="delta", payload=self._show(self.y, codec, seed))

    def absorb(self, push: m.Push, num_workers: int) -> None:
        """Asynchronous: apply one worker's push on arrival, at 1 / num_workers of the step."""
        update = decode(push.payload, len(self.x))
        inherited = self._legacy.pop(push.payload_kind, None)
        if self.role is not Role.PARAMETER:
            update.div_(num_workers)
        if inherited is not None:
            update.add_(inherited, alpha=1.0 if self.role is not Role.PARAMETER else float(num_workers))
        self._move(update, push.lr / num_workers)

    def difference(self, pull: m.Pull) -> m.Update:
        """Asynchronous: return what has changed for one worker since it last looked."""
        codec = self._spec.compression.pull_codec(pull.round, 4 * len(self.x), pull.pull_ratio)
        seed = derive(self._spec.seed, "pull", pull.round, self.index, pull.worker)
        payload = self._show(self.seen_by[pull.worker], codec, seed)
        return m.Update(block=self.index, round=pull.round, payload_kind="delta", payload=payload)

    def inherit(self, handover: m.Handover) -> None:
        """Keep a leaver's residual for the next round."""
        rests = {kind: decode(payload, len(self.x)) for kind, payload in handover.payloads.items()}
        for kind, rest in rests.items():
            self._legacy.setdefault(kind, torch.zeros_like(self.x)).add_(rest, alpha=handover.share)

    def _move(self, mean: Tensor, lr: float | None) -> None:
        """Let the outer optimizer step along a gradient or towards a displacement; the rest is simply averaged."""
        if self.role is not Role.PARAMETER:
            self.x.add_(mean)
            return
        steps_with_gradient = self._spec.strategy.payload == "gradient" and not self._spec.strategy.relays
        rate = lr if steps_with_gradient else None
        self._spec.server_optimizer.update(self.x, mean if steps_with_gradient else mean.neg_(), self._moments, rate)

    def _show(self, seen: Tensor, codec: Compressor, seed: int) -> bytes:
        change = self.x - seen
        payload = codec.encode(change, seed)
        if codec.lossless:
            seen.add_(change)
        else:
            add_checked(payload, seen)
        if not self._spec.compression.error_feedback:
            seen, kept = (seen, self.x) if self._spec.strategy.asynchronous else (self.x, seen)
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
            "role": self.role.value,
            "x": self.x.clone(),
            "y": self.y.clone(),
            "seen_by": {worker: seen.clone() for worker, seen in self.seen_by.items()},
            "legacy": {kind: rest.clone() for kind, rest in self._legacy.items()},
            "rest": None if self._rest is None else self._rest.clone(),
            "outer": {name: value.clone() for name, value in self._moments.items()},
        }

    @classmethod
    def from_state(cls, spec: JobSpec, index: int, state: dict[str, Any]) -> ServerBlock:
        """Return the block a saved state describes."""
        block = cls(spec, index, Role(state["role"]), state["x"])
        block.y = state["y"].clone()
        block.seen_by = {worker: seen.clone() for worker, seen in state["seen_by"].items()}
        block._legacy = {kind: rest.clone() for kind, rest in state["legacy"].items()}
        block._rest = None if state["rest"] is None else state["rest"].clone()
        block._moments = {name: value.clone() for name, value in state["outer"].items()}
        return block

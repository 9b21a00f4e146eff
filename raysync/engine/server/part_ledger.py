"""Sparse averaging on a shard: rounds of one block's parts, several open at a time.

    w_i = y[base_i] + decode(c_i);   A = mean of the w_i that came;   c = encode(A - y);   y += decode(c)

y is the mean of a part as replicas see it. A round closes when every replica has pushed, or when one of them is so far
ahead that it could not use the mean any more: a missing replica only changes the divisor. Who pushes to a round that is
closed is sent its mean all the same.
"""

from __future__ import annotations

from typing import Any

import msgspec
import torch
from torch import Tensor

from raysync.address import Address
from raysync.compress import Identity, verbatim
from raysync.compress.registry import add_checked, check
from raysync.control.view import View
from raysync.engine import messages as m
from raysync.engine.effects import Effects, Send
from raysync.engine.seeds import derive
from raysync.engine.server.block import ParameterBlock
from raysync.engine.server.mirror import plain
from raysync.engine.training.parts import partition
from raysync.spec import JobSpec
from raysync.sync.async_sparse import AsyncSparse

_REMEMBERED = 64
"""So many means of a block are remembered for those who have missed one."""


class PartLedger:
    """The open rounds of one block's parts."""

    def __init__(self, spec: JobSpec, index: int) -> None:
        self._spec, self._index = spec, index
        self._pushes: dict[int, dict[Address, m.PushPart]] = {}
        """By round."""
        self._means: dict[int, m.PartMean] = {}
        self._seen: dict[tuple[int, int], Tensor] = {}
        """By part and round: the mean as replicas saw it after that round."""
        self._newest: dict[int, int] = {}
        """By part: the last round that has closed."""

    @property
    def newest(self) -> dict[int, int]:
        """By part: the last round that has closed since all replicas were the same."""
        return dict(self._newest)

    def retune(self, spec: JobSpec) -> None:
        """Go on with knobs as they are now: replicas have met for that, so no round is open."""
        before, now = self._strategy, spec.strategy
        self._spec = spec
        if isinstance(now, AsyncSparse) and now.num_parts != before.num_parts:
            self.met()

    def met(self) -> None:
        """All replicas hold the block's values now: parts begin anew from them."""
        self._pushes, self._seen, self._newest = {}, {}, {}

    def on_push(self, push: m.PushPart, block: ParameterBlock, view: View) -> Effects:
        """Take in a replica's values."""
        known = self._means.get(push.round)
        if known is not None:
            return [Send(push.sender, known)]
        newest = self._newest.get(push.round % self._count(block), -1)
        if push.round <= newest:
            values = Identity().encode(block.y[self._where(push.round, block)], 0)
            whole = m.PartMean(block=self._index, round=push.round, payload=values, newest=newest)
            return [Send(push.sender, whole)]
        if push.payload:
            check(push.payload, len(self._where(push.round, block)))
        self._pushes.setdefault(push.round, {})[push.sender] = push
        return self.close(block, view)

    def close(self, block: ParameterBlock, view: View) -> Effects:
        """Close every round that can be, oldest first."""
        effects: Effects = []
        furthest = max(self._pushes, default=0)
        patience = max(1, self._strategy.staleness_bound // 2)
        for round in sorted(self._pushes):
            if not {*view.members} <= self._pushes[round].keys() and furthest - round < patience:
                continue
            mean = self._mean(round, self._pushes.pop(round), block)
            self._means = {old: told for old, told in self._means.items() if old > round - _REMEMBERED} | {round: mean}
            effects += [Send(worker, mean) for worker in view.everyone]
        return effects

    def _mean(self, round: int, pushes: dict[Address, m.PushPart], block: ParameterBlock) -> m.PartMean:
        where, part = self._where(round, block), round % self._count(block)
        seen = block.y[where]
        given = {who: push for who, push in pushes.items() if push.payload}
        mean = torch.zeros_like(seen)
        for who in sorted(given):
            push = given[who]
            values = self._seen[part, push.base].clone() if (part, push.base) in self._seen else self._first(part, seen)
            add_checked(push.payload, values)
            mean += values / len(given)
        change = mean - seen if given else torch.zeros_like(seen)
        codec = self._spec.compression.pull_codec(round, 4 * len(change))
        payload = codec.encode(change, derive(self._spec.seed, "pull part", round, self._index))
        self._seen.setdefault((part, self._newest.get(part, -1)), seen.clone())
        add_checked(payload, seen)
        block.put(where, seen)
        self._newest[part] = round
        self._seen[part, round] = seen
        kept = 3 + self._strategy.staleness_bound // self._count(block)
        for key in sorted(key for key in self._seen if key[0] == part)[:-kept]:
            del self._seen[key]
        return m.PartMean(block=self._index, round=round, payload=payload, extra=_mean_extra(given))

    def _first(self, part: int, seen: Tensor) -> Tensor:
        """Return the values of a part before any mean of it."""
        return self._seen.get((part, -1), seen).clone()

    def _where(self, round: int, block: ParameterBlock) -> Tensor:
        parts = partition(self._spec.seed, self._index, len(block.x), self._strategy.num_parts)
        return parts[round % len(parts)]

    def _count(self, block: ParameterBlock) -> int:
        return min(self._strategy.num_parts, len(block.x))

    @property
    def _strategy(self) -> AsyncSparse:
        assert isinstance(self._spec.strategy, AsyncSparse)
        return self._spec.strategy

    def state_dict(self) -> dict[str, Any]:
        """Return what replicas may still refer to; pushes of open rounds are no promises."""
        return {
            "means": {round: (mean.payload, mean.extra) for round, mean in self._means.items()},
            "seen": {f"{part}/{round}": seen.clone() for (part, round), seen in self._seen.items()},
            "newest": dict(self._newest),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self._means = {
            round: m.PartMean(block=self._index, round=round, payload=payload, extra=extra)
            for round, (payload, extra) in state["means"].items()
        }
        self._seen = {}
        for key, seen in state["seen"].items():
            part, _, round = key.partition("/")
            self._seen[int(part), int(round)] = seen.clone()
        self._newest = dict(state["newest"])

    def open_state(self) -> list[dict[str, Any]]:
        """Return the pushes of open rounds, for one that follows the shard."""
        return [plain(push) for pushes in self._pushes.values() for push in pushes.values()]

    def load_open(self, state: list[dict[str, Any]]) -> None:
        """Continue from that."""
        self._pushes = {}
        for found in state:
            push = msgspec.convert(found, m.PushPart, builtin_types=(bytes,))
            self._pushes.setdefault(push.round, {})[push.sender] = push


def _mean_extra(given: dict[Address, m.PushPart]) -> bytes:
    extras = [verbatim.decode(given[who].extra) for who in sorted(given) if given[who].extra]
    if not extras:
        return b""
    total = torch.zeros_like(extras[0])
    for extra in extras:
        total += extra / len(extras)
    return verbatim.encode(total)

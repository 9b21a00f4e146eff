"""A block of buffers or moments on its shard: plainly averaged, and sent as it is.

    synchronous:   x = v_0 + sum of w_i (v_i - v_0), w_i the weights, v_0 the first worker's values
    asynchronous:  x += (v_i - x) / N on arrival

Written as differences, so that what is equal on all workers (a causal mask of -inf, a constant) comes back bit for
bit. No codec touches it: half a variance is no variance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from raysync.address import Address
from raysync.blocks import Content
from raysync.compress import verbatim
from raysync.engine import messages as m
from raysync.spec import JobSpec


class AveragedBlock:
    """State and arithmetic of one such block; who may push when is the shard's business."""

    def __init__(self, index: int, content: Content, values: Tensor) -> None:
        self.index, self.content = index, content
        self.x = values.clone()

    @property
    def y(self) -> Tensor:
        """What the workers can see: all of it."""
        return self.x

    def check(self, payload: bytes) -> None:
        """Raise `PayloadError` unless a payload arrived whole and is for this block."""
        verbatim.check(payload, len(self.x))

    def aggregate(self, pushes: Mapping[Address, m.Push], round: int) -> m.Update:
        """Apply a round's pushes and return what every worker takes over."""
        if pushes:
            total = sum(push.weight for push in pushes.values())
            first, *others = sorted(pushes)
            values = self._values(pushes[first])
            self.x = values.clone()
            for worker in others:
                share = pushes[worker].weight / total
                self.x.add_(minus(self._values(pushes[worker]), values), alpha=share)
        return self._update(round)

    def absorb(self, push: m.Push, num_workers: int) -> None:
        """Asynchronous: move towards one worker's values on arrival."""
        self.x.add_(minus(self._values(push), self.x), alpha=1 / num_workers)

    def difference(self, pull: m.Pull) -> m.Update:
        """Asynchronous: return the values as they are now."""
        return self._update(pull.round)

    def inherit(self, handover: m.Handover) -> None:
        """Nothing of it is ever left unsent."""

    def whole(self, worker: Address | None = None) -> bytes:
        """Return all values for a newcomer."""
        return verbatim.encode(self.x)

    exact = whole

    def begin(self, worker: Address) -> None:
        """Asynchronous: every worker sees the same."""

    def retune(self, spec: JobSpec) -> None:
        """No knob turns here."""

    def keep_only(self, workers: Iterable[Address]) -> None:
        """Nothing is kept per worker."""

    def _values(self, push: m.Push) -> Tensor:
        return verbatim.decode(push.payload, len(self.x))

    def _update(self, round: int) -> m.Update:
        return m.Update(block=self.index, round=round, payload_kind="displacement", payload=self.whole())

    def state_dict(self) -> dict[str, Any]:
        """Return everything this block is."""
        return {"content": self.content.value, "x": self.x.clone()}


def minus(values: Tensor, base: Tensor) -> Tensor:
    """Return values - base, zero wherever the two are equal: infinities are."""
    return torch.where(values == base, torch.zeros_like(base), values - base)

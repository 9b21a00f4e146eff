"""Forward and backward passes of one stage, and what it holds between the two.

Synchronous schedules do not change the weights in between: the graph of a forward pass is kept. Asynchronous ones step
in between: the input is kept and the forward pass repeated, on the weights it was first made with, before the backward
pass; or the graph is kept, and goes backward while the replica wears those weights again. The last stage always keeps
it: its backward pass follows at once.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from raysync.engine.stage.feed import loss_of, model_input
from raysync.engine.stage.stash import Stash
from raysync.engine.training.replica import Replica, seed_generators
from raysync.tasks.workload import Workload

Microbatch = tuple[int, int]
"""A step, and the number of the microbatch in it."""


class _Live(NamedTuple):
    """A microbatch between its passes."""

    given: Tensor
    made: Tensor | None
    """The output, or the loss; None where it is made again."""
    seed: int
    version: int
    share: float
    """Of its samples in those of the step."""


class _Held:
    """Adds up the memory that autograd keeps for a backward pass, the weights left out: those are there anyway."""

    def __init__(self, given: Tensor, weights: Tensor) -> None:
        self.bytes = given.untyped_storage().nbytes()
        self._known = {given.untyped_storage().data_ptr(), weights.untyped_storage().data_ptr()}

    def pack(self, saved: Tensor) -> Tensor:
        storage = saved.untyped_storage()
        if storage.data_ptr() not in self._known:
            self._known.add(storage.data_ptr())
            self.bytes += storage.nbytes()
        return saved

    def unpack(self, saved: Tensor) -> Tensor:
        return saved


class Passes:
    """Computes on one stage's module."""

    def __init__(self, replica: Replica, workload: Workload, device: str, *, is_first: bool, is_last: bool) -> None:
        self._replica, self._workload, self._device = replica, workload, device
        self._is_first, self._is_last = is_first, is_last
        self.stash: Stash | None = None
        """The versions of the weights, where steps are made between the passes of a microbatch and they are kept."""
        self.repeats = False
        """Whether the forward pass is made again before the backward pass."""
        self._steps = 0
        self._live: dict[Microbatch, _Live] = {}
        self.peak_live = 0
        self.microbatch_bytes = 0
        """What is held for a microbatch between its passes, weighed on the first."""
        self.delays: list[int] = []
        """Of every backward pass so far: how many steps older its weights were than those it moves."""

    @property
    def live(self) -> tuple[Microbatch, ...]:
        """The microbatches between their passes."""
        return tuple(self._live)

    def forward(
        self,
        which: Microbatch,
        samples: tuple[int, ...],
        given: Tensor | None,
        seed: int,
        share: float,
        common_seed: int,
    ) -> Tensor:
        """Return what the stage makes of a microbatch: its output, or the mean loss of its samples, of which the step's
        loss is made by `share`. What the task's loss does at random is the same on the first stage and the last.
        """
        batch = self._workload.batch(np.array(samples, np.int64)) if self._is_first or self._is_last else None
        if given is None:
            seed_generators(common_seed, self._device)
            given = model_input(self._workload, batch)
        elif given.is_floating_point():
            given.requires_grad_()
        if self.stash is not None:
            self.stash.use(self._steps)
        held = _Held(given, self._replica.flat)
        weighs = saved_tensors_hooks(held.pack, held.unpack) if not self.microbatch_bytes else nullcontext()
        with torch.set_grad_enabled(not self.repeats), weighs:
            made = self._run(given, seed)
            if self._is_last:
                seed_generators(common_seed, self._device)
                made = loss_of(self._workload, batch, made)
        self.microbatch_bytes = self.microbatch_bytes or held.bytes
        self._live[which] = _Live(given, None if self.repeats else made, seed, self._steps, share)
        self.peak_live = max(self.peak_live, len(self._live))
        return made.detach()

    def backward(self, which: Microbatch, gradient: Tensor | None) -> Tensor | None:
        """Add the gradient of a microbatch to the replica's, given that of what the stage made; return that of what the
        stage was given, None on the first.
        """
        live = self._live.pop(which)
        self.delays = [*self.delays[-999:], self._steps - live.version]
        if self.stash is not None:
            self.stash.wear(live.version)
        made = self._run(live.given, live.seed) if live.made is None else live.made
        if self._is_last:
            (made * live.share).backward()  # type: ignore[no-untyped-call]
        else:
            made.backward(gradient)  # type: ignore[no-untyped-call]
        if self.stash is not None:
            self.stash.done(live.version)
        return None if self._is_first else live.given.grad

    def begin_step(self) -> None:
        """The weights are about to change."""
        if self.stash is not None:
            self.stash.begin_step()
        self._steps += 1

    def forget(self) -> None:
        """No microbatch is in flight any more."""
        self._live = {}
        if self.stash is not None:
            self.stash.forget()

    def _run(self, given: Tensor, seed: int) -> Tensor:
        seed_generators(seed, self._device)
        module: nn.Module = self._replica.model
        if not module.training:
            module.train()
        out: Tensor = module(given)
        return out

"""What a stage holds in memory, by what it is for: the formula that says whether a stage fits its device.

    weights and gradient        2 vectors
    what all replicas last saw  1, unless the server steps and it is the weights themselves
    moments                     one each
    stash                       one for each step of delay
    sparse averaging            displacement 1, whether it is known 1/4, the partition's coordinates 1
    microbatches in flight      live x their inputs, or all that their forward pass has saved

A vector is four bytes for each of the stage's parameters. What an operation needs while it runs comes on top.
"""

from __future__ import annotations

from typing import NamedTuple

from raysync.engine.exchange import exchange_of
from raysync.spec import JobSpec
from raysync.sync.async_sparse import AsyncSparse

_FLOAT_BYTES = 4
_KNOWN_BYTES = 1
_COORDINATE_BYTES = 4


class StageMemory(NamedTuple):
    """Bytes, by purpose."""

    weights: int
    """Those trained, their gradient, and what all replicas last saw of them."""
    moments: int
    stash: int
    averaging: int
    activations: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self)


def stage_memory(spec: JobSpec, stage: int, parameters: int, microbatch_bytes: int) -> StageMemory:
    """Return what a stage with so many parameters holds, given what it holds for a microbatch in flight."""
    schedule, stages = spec.schedule, spec.scale.stages
    assert schedule is not None
    vector = _FLOAT_BYTES * parameters
    is_sparse = isinstance(spec.strategy, AsyncSparse)
    live = schedule.live(stage, stages, max(schedule.microbatches, 2 * schedule.delay(0, stages) + 2))
    return StageMemory(
        weights=vector * (2 if exchange_of(spec).server_steps else 3),
        moments=vector * len(spec.optimizer.active_moments),
        stash=vector * schedule.delay(stage, stages) if schedule.keeps_weights else 0,
        averaging=(vector + (_KNOWN_BYTES + _COORDINATE_BYTES) * parameters) if is_sparse else 0,
        activations=live * microbatch_bytes,
    )

"""A schedule orders the forward and backward passes of microbatches over the stages of a pipeline.

A member is its order: the operations of one stage, as data. `raysync.pipeline.replay` proves an order free of deadlock;
`raysync.engine.stage` carries it out.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from itertools import islice
from typing import Annotated, ClassVar, NamedTuple

from pydantic import Field

from raysync.compress import BF16, FP16, Identity, Int8
from raysync.value import Value

ActivationCodec = Annotated[Identity | FP16 | BF16 | Int8, Field(discriminator="kind")]


class Kind(StrEnum):
    """What a stage does with a microbatch."""

    FORWARD = "forward"
    BACKWARD = "backward"
    STEP = "step"
    """Let the optimizer apply what the backward passes left."""


class Op(NamedTuple):
    """One operation of a stage; a step names the last microbatch it applies."""

    kind: Kind
    microbatch: int


Plan = tuple[Op, ...]
"""What one stage does, in order."""


class Schedule(Value):
    """The family of pipeline schedules."""

    kind: str
    is_asynchronous: ClassVar[bool] = False
    """Whether a stage steps after every microbatch, so that gradients are of older weights than those they move."""
    microbatches: int = Field(default=4, ge=1)
    """How many parts a worker's batch is cut into."""
    activations: ActivationCodec = Identity()
    """How activations travel to the next stage. Each is of other samples, so nothing is made up for later."""
    gradients: ActivationCodec = Identity()
    """How their gradients travel back."""
    clip_norm: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """The largest norm of a gradient that is stepped with: the whole model's where the schedule is synchronous, each
    stage's own where it is not.
    """

    def order(self, stage: int, stages: int, count: int | None) -> Iterator[Op]:
        """Yield what a stage does with `count` microbatches; with None without end."""
        raise NotImplementedError

    def plan(self, stage: int, stages: int, count: int) -> Plan:
        """Return what a stage does with `count` microbatches."""
        return tuple(self.order(stage, stages, count))

    def delay(self, stage: int, stages: int) -> int:
        """Return how many steps a stage makes between the forward pass of a microbatch and its own step for it, once
        the pipeline is full.
        """
        return 0

    @property
    def keeps_weights(self) -> bool:
        """Whether a backward pass uses the weights its forward pass used though steps were made between the two."""
        return False

    @property
    def repeats_forward(self) -> bool:
        """Whether a forward pass is made again before its backward pass, instead of keeping what it computed."""
        return False

    def lr_factor(self, stage: int, stages: int, step: int) -> float:
        """Return what the learning rate of a stage is multiplied with at a step."""
        return 1.0

    def live(self, stage: int, stages: int, count: int) -> int:
        """Return of how many microbatches a stage holds activations at most."""
        most = held = 0
        for op in islice(self.order(stage, stages, count), 3 * count):
            held += {Kind.FORWARD: 1, Kind.BACKWARD: -1, Kind.STEP: 0}[op.kind]
            most = max(most, held)
        return most


def alternate(warmup: int, count: int | None, steps_each: bool) -> Iterator[Op]:
    """Yield `warmup` forward passes, then one forward and one backward pass in turn, then the backward passes left."""
    forwards = backwards = 0
    while count is None or backwards < count:
        if forwards - backwards <= warmup and (count is None or forwards < count):
            yield Op(Kind.FORWARD, forwards)
            forwards += 1
        else:
            yield Op(Kind.BACKWARD, backwards)
            if steps_each:
                yield Op(Kind.STEP, backwards)
            backwards += 1
    if not steps_each and count:
        yield Op(Kind.STEP, count - 1)

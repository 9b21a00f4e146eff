"""`async_one_f_one_b`: one forward, one backward pass, one step, without end: no stage ever waits for a batch to drain.

A microbatch is a worker's whole batch. Its gradient on stage s is of weights P - 1 - s steps old, which the stage has
kept (PipeDream's stash of P - s versions); the optimizer `lookahead` makes up for the delay. A line with a latency of L
keeps two microbatches per round trip 2 L waiting between the last two stages; `slack` lets more of them travel at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from raysync.pipeline.base import Op, Schedule, alternate


class AsyncOneFOneB(Schedule):
    """One forward, one backward pass, one step, without end."""

    kind: Literal["async_one_f_one_b"] = "async_one_f_one_b"
    is_asynchronous: ClassVar[bool] = True
    microbatches: int = Field(default=1, ge=1, le=1)
    """A batch is not cut: every one of them is a step."""
    stash: bool = True
    """Whether backward passes use the weights that the forward pass used; false saves the memory of the versions, and
    wants `correct_lr_steps` and `optimizer.last_beta1`.
    """
    recompute: bool = True
    """Whether a stage keeps only the input of a microbatch in flight and makes its forward pass again; false saves that
    third of the computing, and keeps all that the pass computed in memory.
    """
    correct_lr_steps: int | None = Field(default=None, ge=1)
    """Divide a stage's rate by its delay at first, and by less and less over so many steps (PipeMare's first rule)."""

    slack: int = Field(default=0, ge=0, le=16)
    """How many more microbatches each stage lets go ahead of the next one: they hide the latency of the line between
    the two, and each is a step more of delay on every stage before it.
    """

    def order(self, stage: int, stages: int, count: int | None) -> Iterator[Op]:
        return alternate(self.delay(stage, stages), count, steps_each=True)

    def delay(self, stage: int, stages: int) -> int:
        return (stages - 1 - stage) * (1 + self.slack)

    @property
    def keeps_weights(self) -> bool:
        return self.stash

    @property
    def repeats_forward(self) -> bool:
        return self.recompute

    @model_validator(mode="after")
    def _keeps_what_it_needs(self) -> Self:
        if not self.recompute and not self.stash:
            raise ValueError("recompute: false keeps passes that were made with older weights, and needs stash: true")
        return self

    def lr_factor(self, stage: int, stages: int, step: int) -> float:
        delay = self.delay(stage, stages)
        if self.correct_lr_steps is None or delay == 0:
            return 1.0
        return float(delay ** (min(step / self.correct_lr_steps, 1.0) - 1.0))

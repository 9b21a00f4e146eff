"""A schedule orders the forward and backward passes of microbatches over the stages of a pipeline."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from raysync.value import Value


class Schedule(Value):
    """The family of pipeline schedules."""

    kind: str
    runs: ClassVar[bool] = False
    """Whether the engine runs it, or only checks it so far."""
    microbatches: int = Field(default=4, ge=1)
    """How many parts a worker's batch is cut into."""

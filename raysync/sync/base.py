"""A strategy decides, from what all workers saw in a step, whether they synchronise; it is a frozen value and pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from raysync.optim import SGD, AnyOptimizer
from raysync.value import Value

PayloadKind = Literal["gradient", "delta"]


@dataclass(frozen=True)
class StepContext:
    """All a strategy may look at when it decides about one step."""

    step: int
    """The step decided about, from 0."""
    last_sync_step: int
    """The last step that ended in a synchronisation, -1 before the first."""
    members: tuple[int, ...]
    """Workers taking part in this step, in ascending order."""
    values: tuple[tuple[float, ...], ...]
    """What each member's meter reported, in the order of `members`; empty tuples where there is no meter."""
    total_steps: int
    steps_per_lap: int
    """Steps in which the workers together read the data once."""
    lr_at: Callable[[int], float]
    """The learning rate at a step."""
    seed: int
    memory: Mapping[str, float] = field(default_factory=dict)
    """What this strategy asked to remember at its last decision."""

    @property
    def since_sync(self) -> int:
        """Steps since the last synchronisation, counting this one."""
        return self.step - self.last_sync_step


@dataclass(frozen=True)
class Choice:
    """A strategy's answer: synchronise or not, and the sentence that says why."""

    sync: bool
    reason: str
    participants: tuple[int, ...] | None = None
    """Who contributes to the synchronisation; None means every member."""
    score: float | None = None
    """The number the decision rested on, where there is one."""
    memory: Mapping[str, float] = field(default_factory=dict)


class Strategy(Value):
    """The family of strategies. A member is its configuration plus `decide`."""

    kind: str
    asynchronous: ClassVar[bool] = False
    """True where pushes are applied on arrival and workers keep their own clocks."""

    @property
    def payload(self) -> PayloadKind:
        """What workers send at a synchronisation: their gradient, or their parameters minus the last visible ones."""
        return "delta"

    @property
    def relays(self) -> bool:
        """Whether the server hands the mean gradient on instead of stepping with it, so that replicas stay apart."""
        return False

    @property
    def decides_ahead(self) -> bool:
        """Whether step s may be decided from what was seen at step s - 1, so that no worker waits for the answer."""
        return True

    @property
    def staleness_limit(self) -> int | None:
        """How many clocks the fastest worker may be ahead when it reads; None for lock-step strategies."""
        return None

    def decide(self, context: StepContext) -> Choice:
        """Return whether this step ends in a synchronisation."""
        raise NotImplementedError

    def default_outer(self, optimizer: AnyOptimizer) -> AnyOptimizer:
        """Return the server's update rule where the job names none."""
        return SGD(lr=1.0)

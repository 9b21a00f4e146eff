"""A strategy decides, from what all workers saw in a step, whether they synchronise; it is a frozen value and pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from raysync.address import Address
from raysync.optim import SGD, AnyOptimizer
from raysync.value import Value

if TYPE_CHECKING:
    from raysync.sync.signal.base import Signal

PayloadKind = Literal["gradient", "displacement"]
"""What a push carries: the gradient of a step, or local parameters minus the last visible ones."""
UpdateKind = Literal["gradient", "displacement", "values"]
"""What an update carries: the mean gradient, what has changed, or the values themselves."""


class Needs(NamedTuple):
    """What a strategy needs of the engine, in one value."""

    pacing: str = "lock_step"
    """Who waits for whom, by the name of a file in `raysync.engine.pacing`."""
    exchange: str = "displacement"
    """How updates travel, by the name of a file in `raysync.engine.exchange`."""
    decides_ahead: bool = True
    """lock_step: step s may be decided from what was seen at step s - 1, so that no worker waits for the answer."""
    staleness_limit: int = 0
    """bounded: how many clocks the fastest worker may be ahead when it reads."""
    signal: Signal | None = None
    """What workers measure for the decision; None for strategies that listen to nothing."""
    lands_late: bool = False
    """Workers go on while a round is on its way; what it brings lands between two later steps."""


@dataclass(frozen=True)
class StepContext:
    """All a strategy may look at when it decides about one step."""

    step: int
    """The step decided about, from 0."""
    last_sync_step: int
    """The last step that ended in a synchronisation, -1 before the first."""
    members: tuple[Address, ...]
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
    participants: tuple[Address, ...] | None = None
    """Who contributes to the synchronisation; None means every member."""
    score: float | None = None
    """The number the decision rested on, where there is one."""
    memory: Mapping[str, float] = field(default_factory=dict)
    notice: str | None = None
    """What whoever runs the job should know now, and what to do about it."""
    threshold: float | None = None
    """What the score was compared with, where there is one."""
    scores: Mapping[Address, float] = field(default_factory=dict)
    """Each worker's own share in the score, where it can be compared with the threshold."""


class Strategy(Value):
    """The family of strategies. A member is its configuration plus `decide`."""

    kind: str

    @property
    def needs(self) -> Needs:
        """What it needs of the engine; by default averaging in lock step."""
        return Needs()

    def decide(self, context: StepContext) -> Choice:
        """Return whether this step ends in a synchronisation."""
        raise NotImplementedError

    def default_outer(self, optimizer: AnyOptimizer) -> AnyOptimizer:
        """Return the server's update rule where the job names none."""
        return SGD(lr=1.0)


class Averaging(Strategy):
    """Strategies whose workers take local steps and average what these came to."""

    landing: Literal["wait", "late"] = "wait"
    """Wait for a round that was begun; or go on, and add what the others bring when it has come: a slow link then costs
    bytes, not time. One round is on its way at a time.
    """

    @property
    def needs(self) -> Needs:
        return Needs(lands_late=self.landing == "late")

"""What an event holds, one type for each kind. A new kind is a class here and its name in `AnyEvent`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self, get_args

import msgspec

from raysync.control.states import JobState
from raysync.knobs import KnobValue


class Body(msgspec.Struct, frozen=True):
    """What an event of one kind tells; its tag is the envelope's `kind`."""

    kind: ClassVar[str]
    is_passing: ClassVar[bool] = False
    """A long job has so many of them that old ones are thinned out."""

    @property
    def data(self) -> dict[str, Any]:
        """The fields as an envelope carries them."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        """Return the fields as they were told, without those unknown here; raise `ValidationError` if some lack."""
        return msgspec.convert(data, cls)


class Metrics(Body, frozen=True):
    """Metrics of a step, by name; null where a number is not finite."""

    kind: ClassVar[str] = "metrics"
    is_passing: ClassVar[bool] = True

    values: Mapping[str, float | None]

    @property
    def data(self) -> dict[str, Any]:
        """The metrics themselves."""
        return dict(self.values)

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        """Return those that are numbers."""
        return cls({name: value for name, value in data.items() if _is_number(value)})


class Decision(Body, frozen=True):
    """What the workers do at the end of a step, and why."""

    kind: ClassVar[str] = "decision"
    is_passing: ClassVar[bool] = True

    sync: bool
    reason: str
    round: int
    """The synchronisation the step ends in, or the last one before it."""
    score: float | None = None
    """What the strategy compared with its threshold, if it has one."""
    scores: dict[str, float] | msgspec.UnsetType = msgspec.UNSET
    """What each worker called for on its own, by its number, where that can be compared with the threshold."""
    late: list[int] | msgspec.UnsetType = msgspec.UNSET
    """The workers it was made without, since they came too late, if there were such."""


class Notice(Body, frozen=True):
    """Something the strategy wants people to know."""

    kind: ClassVar[str] = "notice"

    text: str


class KnobChange(Body, frozen=True, omit_defaults=True):
    """Knobs were turned: in force from this step on, with this knob version."""

    kind: ClassVar[str] = "knobs"

    before: dict[str, KnobValue]
    after: dict[str, KnobValue]
    asked_step: int = -1
    """The step that was next when the change was asked for; -1 where that is not known."""
    why: str | None = None
    """Why it comes now, if it was not asked for just now."""
    by: str = ""
    """Who asked for it, where that is known."""


class ViewChange(Body, frozen=True):
    """Workers joined, left or died; from this step on the members are these."""

    kind: ClassVar[str] = "view"

    number: int
    members: list[int]
    joined: list[int]
    left: list[int]
    died: list[int]


class StateChange(Body, frozen=True):
    """The job has entered a state."""

    kind: ClassVar[str] = "state"

    state: JobState
    reason: str
    before: str = ""
    at_s: float | None = None
    """Seconds since 1970."""


class NewReason(Body, frozen=True):
    """The job is in its state for another reason than before."""

    kind: ClassVar[str] = "reason"
    is_passing: ClassVar[bool] = True

    state: JobState
    reason: str


class ActorStarted(Body, frozen=True):
    """An actor of the job has come up."""

    kind: ClassVar[str] = "actor"

    name: str
    link: str | None
    node: str
    node_id: str
    pid: int


class WorkerDied(Body, frozen=True):
    """A worker is gone without a word."""

    kind: ClassVar[str] = "death"

    worker: int
    why: str


class CheckpointTaken(Body, frozen=True):
    """A checkpoint is complete."""

    kind: ClassVar[str] = "checkpoint"

    checkpoint: int
    round: int


class CheckpointFailed(Body, frozen=True):
    """A checkpoint could not be written; the next one is tried."""

    kind: ClassVar[str] = "checkpoint_failed"

    checkpoint: int
    round: int
    who: str
    """The actor whose part it was."""
    why: str


class Divergence(Body, frozen=True):
    """A loss or an update was not finite: that batch of that worker counts for nothing."""

    kind: ClassVar[str] = "divergence"

    who: str
    """In words: a worker, or a stage of a pipeline; the envelope has the step, and the worker's number."""
    problem: str
    parameter: str = ""
    """Where it was seen first; empty where only the loss tells."""


class StuckStep(Body, frozen=True):
    """A step takes far longer than those before it; nothing is done about it."""

    kind: ClassVar[str] = "stuck"

    who: str
    step: int
    for_s: float
    """How long it takes so far."""
    usual_s: float | None
    """How long nearly all steps before it took; null before the first."""
    where: str
    """The line that is being executed, the user's own where there is one."""


AnyEvent = (
    Metrics
    | Decision
    | Notice
    | KnobChange
    | ViewChange
    | StateChange
    | NewReason
    | ActorStarted
    | WorkerDied
    | CheckpointTaken
    | CheckpointFailed
    | Divergence
    | StuckStep
)
BY_KIND: Mapping[str, type[AnyEvent]] = {body.kind: body for body in get_args(AnyEvent)}


def body_of(kind: str, data: Mapping[str, Any]) -> AnyEvent | None:
    """Return what an event tells; None if this version of raysync does not know the kind, or not in this form."""
    body = BY_KIND.get(kind)
    try:
        return body.read(data) if body is not None else None
    except msgspec.ValidationError:
        return None


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))

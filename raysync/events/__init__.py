"""What a job tells about itself: one envelope, `Event`, and for every kind of event a type that says what it holds.

Coordinator, controller, journal, gateway and service hand on the same envelope with its data as it was told, so that
an event of a kind unknown here, or with fields unknown here, passes through whole. Readers match on `Event.body`.
"""

from raysync.events.body import (
    BY_KIND,
    ActorStarted,
    AnyEvent,
    Body,
    CheckpointFailed,
    CheckpointTaken,
    Decision,
    Divergence,
    KnobChange,
    Metrics,
    NewReason,
    Notice,
    StateChange,
    StuckStep,
    ViewChange,
    WorkerDied,
    body_of,
)
from raysync.events.event import Event

__all__ = [
    "BY_KIND",
    "ActorStarted",
    "AnyEvent",
    "Body",
    "CheckpointFailed",
    "CheckpointTaken",
    "Decision",
    "Divergence",
    "Event",
    "KnobChange",
    "Metrics",
    "NewReason",
    "Notice",
    "StateChange",
    "StuckStep",
    "ViewChange",
    "WorkerDied",
    "body_of",
]

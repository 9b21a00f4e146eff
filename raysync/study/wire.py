"""What a study's process and the service that started it say to each other, over a socket only their user can enter."""

from __future__ import annotations

import msgspec

from raysync.study.trial import Trial


class StartJob(msgspec.Struct, frozen=True, tag=True):
    """Enter a job under this id."""

    number: int
    id: str
    spec: str
    """As JSON."""


class StopJob(msgspec.Struct, frozen=True, tag=True):
    """End a job, if it has not ended."""

    number: int
    id: str
    reason: str


class LookAtJob(msgspec.Struct, frozen=True, tag=True):
    """Say why a job will never run, if it will not."""

    number: int
    id: str


class TrialTold(msgspec.Struct, frozen=True, tag=True):
    """A trial as it is now."""

    trial: Trial


class StudyEnded(msgspec.Struct, frozen=True, tag=True):
    """What the study came to; the last thing its process says."""

    state: str
    reason: str


class Answered(msgspec.Struct, frozen=True, tag=True):
    """The answer to a question: nothing, or a problem in words."""

    number: int
    problem: str | None = None


class EndStudy(msgspec.Struct, frozen=True, tag=True):
    """Begin no more trials and end those that run."""


FromStudy = StartJob | StopJob | LookAtJob | TrialTold | StudyEnded
ToStudy = Answered | EndStudy

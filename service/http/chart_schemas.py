"""What goes over HTTP for charts and downloads: series, schedules as they ran, artifacts."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from raysync.control.states import JobState


class SeriesPublic(BaseModel):
    """One metric of a job, or of one of its workers: columns of equal length, in the order of events."""

    name: str
    worker: int | None
    unit: str
    count: int = Field(description="how many samples there are in this part of the job")
    is_sampled: bool = Field(
        description="whether some were left out: of every piece the first, least, most and last stay"
    )
    min: float
    max: float
    sequence: list[int]
    step: list[int]
    time_s: list[float] = Field(description="seconds since the job's start")
    bytes: list[float] = Field(description="payload sent until then, up and down; it never goes back")
    value: list[float]


class JobSeries(BaseModel):
    """The series of a job."""

    job: str
    state: JobState
    is_terminal: bool
    steps: int
    after: int
    last: int = Field(description="the number of its last event")
    series: list[SeriesPublic]


class SeriesPage(BaseModel):
    """Series of several jobs."""

    jobs: list[JobSeries]
    next_after: list[int] = Field(description="send it as `after` for what is new, here or in `GET /stream`")


class ArtifactPublic(BaseModel):
    """A file a job has made."""

    path: str = Field(description="its path in the job's folder")
    kind: Literal["model", "checkpoint", "trace"]
    size_bytes: int
    step: int | None = Field(description="of a checkpoint's files, its step")


class ArtifactPage(BaseModel):
    """What a job has made."""

    items: list[ArtifactPublic]


class SpanPublic(BaseModel):
    """One operation of a stage."""

    stage: int
    replica: int
    kind: str
    step: int
    microbatch: int
    start_s: float = Field(description="seconds since the first operation of all")
    end_s: float


class UtilisationPublic(BaseModel):
    """How busy a stage was."""

    stage: int
    replica: int
    ratio: float = Field(description="share of the time, from its first operation to its last, in which it computed")


class TracePublic(BaseModel):
    """The schedule of a pipeline as it ran; empty until its stages have ended."""

    spans: list[SpanPublic]
    utilisation: list[UtilisationPublic]

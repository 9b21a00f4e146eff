"""What goes over HTTP: bodies and answers, with examples."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from raysync.control.states import JobState
from raysync.events import AnyEvent, body_of
from raysync.knobs import KNOB_FIELDS
from raysync.spec import JobSpec
from raysync.value import Shape
from service.errors import BadRequest

_JOB = r"[a-z0-9][a-z0-9._-]{0,99}"
JobId = Annotated[str, Shape(_JOB, "a job's id looks like digits-1a2b3c4d; `raysync list` shows them")]
PackageId = Annotated[
    str, Shape(r"[0-9a-f]{64}", "a package's id has 64 digits from 0 to f; POST /packages answers it")
]
_CHECKPOINT = Shape(
    _JOB + r"(/checkpoint_[0-9]{6,9})?",
    "name a job or one of its checkpoints, such as digits-1a2b3c4d or digits-1a2b3c4d/checkpoint_000003; a path is for "
    "--resume of a run without a service",
)
ResumeFrom = Annotated[str, _CHECKPOINT]


def check_resume_from(text: str) -> str:
    """Return the job that `JOB` or `JOB/CHECKPOINT` names, or raise."""
    try:
        return _CHECKPOINT.check(text).partition("/")[0]
    except PydanticCustomError as error:
        raise BadRequest(f"--resume-from {text}", error.message()) from None


_REQUIREMENT = r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9,._-]+\])?([<>=!~]=?[A-Za-z0-9.*+!,<>=~]+)?"
Requirement = Annotated[
    str,
    Field(max_length=200),
    Shape(
        _REQUIREMENT, "a requirement is a name with versions, such as numpy>=2 or torch[extra]==2.5; no URL, no option"
    ),
]
"""A name with versions: no URLs and no options, which could send pip elsewhere."""
KnobChange = float | bool | Literal["Infinity", "auto"] | None

_EXAMPLE_SPEC: Any = {
    "name": "digits",
    "task": {"kind": "digits"},
    "strategy": {"kind": "selsync", "delta": 0.3},
    "compression": {"push": {"kind": "onebit"}, "pull": {"kind": "onebit"}},
    "scale": {"workers": 2, "max_workers": 4},
    "budget": {"steps": 2000},
}


class Body(BaseModel):
    """What a client sends: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class JobCreate(Body):
    """A job to run."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"spec": _EXAMPLE_SPEC}]})

    spec: JobSpec
    package: PackageId | None = Field(default=None, description="your code, as `POST /packages` named it")
    pip: tuple[Requirement, ...] = Field(default=(), max_length=50, description="requirements to install for workers")
    resume_from: ResumeFrom | None = Field(
        default=None,
        description="a job to continue from its last checkpoint, or one of its checkpoints: `JOB/checkpoint_000003`",
    )
    priority: int = Field(
        default=0,
        ge=-1000,
        le=1000,
        description="while more jobs wait than may live at once, those with a larger number start first",
    )
    on_cluster_loss: Literal["fail", "resume"] = Field(
        default="fail",
        description="what to do if the Ray cluster goes away: give up, or go on from the last checkpoint",
    )


class KnobPatch(Body):
    """Knobs to turn, all at the same step."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"values": {"delta": 0.5}, "expected_version": 3}]})

    values: dict[Annotated[str, Field(max_length=40)], KnobChange] = Field(
        min_length=1, max_length=20, description=f"which of {', '.join((*KNOB_FIELDS, 'pause'))} to set to what"
    )
    expected_version: int | None = Field(
        default=None, ge=0, le=2**53, description="refuse with 409 if the version is another"
    )
    dry_run: bool = Field(default=False, description="check and answer, but change nothing")


class WorkersPut(Body):
    """A number of workers."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"count": 3}]})

    count: int = Field(ge=1, le=4096, description="between the job's min_workers and max_workers")


class StopRequest(Body):
    """How a job is to end."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "good enough"}]})

    reason: str | None = Field(
        default=None, min_length=1, max_length=500, description="why; who asked is noted with it in any case"
    )
    force_after_s: float = Field(default=60.0, ge=0, le=3600, description="end it by force if it takes longer")


class JobSummary(BaseModel):
    """A job in a list."""

    id: str
    name: str
    owner: str = Field(description="the name of the token that submitted it")
    state: JobState
    is_terminal: bool
    reason: str = Field(description="why it is in this state, in one line; of a failed job, the line that raised")
    strategy: str
    created_at: datetime
    started_at: datetime | None = Field(description="when it first trained")
    ended_at: datetime | None
    step: int
    steps: int
    workers: int = Field(description="how many train now")
    metrics: dict[str, float | None] = Field(description="the last value of each metric; `GET /components` lists them")
    knob_version: int
    priority: int
    queue_position: int | None = Field(description="its place in the line of jobs that wait to be started; 1 is next")


class JobPublic(JobSummary):
    """A job with all that is known of it."""

    reason: str = Field(description="why it is in this state; of a failed job, the whole traceback")
    spec: dict[str, Any]
    knobs: dict[str, Any]
    on_cluster_loss: str
    package: str | None
    pip: list[str] = Field(default=[], description="requirements installed for its workers")
    resume_from: str | None
    launches: int = Field(description="how often it was started; more than once after a cluster was lost")
    runs: dict[str, Any] = Field(description="what really runs: link, codecs, devices, actors")
    path: str = Field(description="the job's folder")
    last_sequence: int = Field(description="the number of its last event")
    advice: list[str] = Field(default=[], description="settings that are known to be fragile, and what to change")


class JobPage(BaseModel):
    """Jobs, newest first."""

    items: list[JobSummary]
    next_cursor: str | None = Field(description="send it as `cursor` for the next page; null on the last")


class KnobsPublic(BaseModel):
    """A job's knobs."""

    job: str
    version: int = Field(description="goes up by one with each change; also the ETag")
    values: dict[str, Any] = Field(description="as they are, or will be at the next decision")
    version_in_force: int = Field(description="the version the workers have now")
    before: dict[str, Any] = Field(default={}, description="what the changed knobs were: send it back to undo")
    dry_run: bool = False


class EventPublic(BaseModel):
    """Something that happened."""

    job: str
    sequence: int
    kind: str
    step: int
    time_s: float = Field(description="seconds since the job's start")
    worker: int | None
    knob_version: int
    data: dict[str, Any] = Field(description="what happened, by kind")

    @property
    def body(self) -> AnyEvent | None:
        """What it tells, by kind; None if this version of raysync does not know that."""
        return body_of(self.kind, self.data)


class EventPage(BaseModel):
    """Events in order."""

    items: list[EventPublic]
    next_after: int | None = Field(description="send it as `after` for the next page; null if there is no more now")


class CheckpointPublic(BaseModel):
    """A checkpoint."""

    name: str
    path: str
    step: int
    round: int
    workers: int
    elapsed_s: float
    size_bytes: int


class PackagePublic(BaseModel):
    """A package of user code."""

    id: str
    size_bytes: int
    modules: list[str] = Field(description="what can be named in an entrypoint")
    created_at: datetime


class Health(BaseModel):
    """That the service is alive."""

    status: Literal["ok"] = "ok"
    version: str


class Readiness(BaseModel):
    """Whether the service can run jobs now."""

    ready: bool
    database: str
    ray: str
    max_live_jobs: int = Field(description="so many jobs are started at once; the others wait in line")

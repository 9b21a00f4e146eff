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
from raysync.study import Kind, State, StudySpec
from raysync.value import Shape
from service.errors import BadRequest

_JOB = r"[a-z0-9][a-z0-9._-]{0,99}"
JobId = Annotated[str, Shape(_JOB, "a job's id looks like digits-1a2b3c4d; `raysync list` shows them")]
StudyId = Annotated[str, Shape(_JOB, "a study's id looks like ratios-1a2b3c4d; GET /studies lists them")]
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

_EXAMPLE_STUDY: Any = {
    "name": "ratios",
    "base": {**_EXAMPLE_SPEC, "compression": {"push": {"kind": "topk", "ratio": 0.05}}},
    "space": {"compression.push.ratio": {"low": 0.002, "high": 0.2, "log": True}},
    "floor": {"metric": "eval/accuracy", "at_least": 0.94},
    "trials": 12,
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
    dry_run: bool = Field(default=False, description="check it and answer with 200, but enter no job")


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


class StudyCreate(Body):
    """A search over the fields of a job."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"spec": _EXAMPLE_STUDY}]})

    spec: StudySpec
    package: PackageId | None = Field(default=None, description="your code, as `POST /packages` named it")
    pip: tuple[Requirement, ...] = Field(default=(), max_length=50, description="requirements to install for workers")


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
    labels: dict[str, str] = Field(default={}, description="words to find it by")
    queue_position: int | None = Field(description="its place in the line of jobs that wait to be started; 1 is next")


class ActorPublic(BaseModel):
    """A process of a job."""

    name: str = Field(description="such as worker/0, stage/1/0, shard/0, coordinator")
    role: str
    index: int | None = Field(description="which of them; of a stage, which pipeline it is in")
    stage: int | None = Field(description="of a stage, which one")
    node: str | None
    pid: int | None
    life: str | None = Field(
        description="how it is: starting, alive, gone, dead or failed; null if that is not known any more"
    )
    device: str | None
    threads: int | None
    busy_ratio: float | None = Field(description="CPU time over time since its first step")
    compute_s: float | None = Field(description="how long its last step, or a stage's last operation, took to compute")
    steps_per_s: float | None = Field(description="one over that")
    restarts: int = Field(description="how often another process has taken its place")
    memory_bytes: int | None = Field(description="the most it has held")
    sent_bytes: int | None = Field(description="what it has sent over the network")


class JobPublic(JobSummary):
    """A job with all that is known of it."""

    traceback: str | None = Field(default=None, description="all that is known of why, where that is more than a line")
    actors: list[ActorPublic] = Field(default=[], description="its processes, now or when it ended")
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


class JobCheck(BaseModel):
    """A job that could be submitted as it is."""

    dry_run: Literal[True] = True
    spec: dict[str, Any] = Field(description="the whole of it, with defaults")
    knobs: dict[str, Any]
    labels: dict[str, str]
    advice: list[str] = Field(description="settings that are known to be fragile, and what to change")


class JobPage(BaseModel):
    """Jobs, newest first or as `sort` says."""

    items: list[JobSummary]
    next_cursor: str | None = Field(description="send it as `cursor` for the next page; null on the last")


class StudySummary(BaseModel):
    """A study in a list."""

    id: str
    name: str
    owner: str = Field(description="the name of the token that submitted it")
    state: Literal["PENDING", "RUNNING", "SUCCEEDED", "STOPPED", "FAILED"]
    is_terminal: bool
    reason: str = Field(description="why it is in this state, in one line")
    created_at: datetime
    ended_at: datetime | None
    begun: int = Field(description="how many trials have been begun")
    trials: int = Field(description="how many there are to be")


class PickPublic(BaseModel):
    """A trial worth taking."""

    trial: int
    why: str = Field(description="what it is worth beside the dense job")
    spec: dict[str, Any] = Field(description="a job that can be submitted as it is")


class StudyPublic(StudySummary):
    """A study with what it has found so far."""

    spec: dict[str, Any]
    package: str | None
    pip: list[str]
    over: int = Field(description="how many trials have ended")
    sentence: str = Field(description="the answer in one sentence")
    front: list[int] = Field(description="the trials that no other beats on both counts, cheapest first")
    picks: dict[str, PickPublic] = Field(description="smallest, knee and best")
    hypervolume: list[float] = Field(description="how much the front covers after each trial")
    last_sequence: int = Field(description="the number of the last change of a trial")


class StudyPage(BaseModel):
    """Studies, newest first."""

    items: list[StudySummary]


class SeenPublic(BaseModel):
    """One evaluation of a trial."""

    step: int
    quality: float = Field(description="the floor's metric")
    bytes: float = Field(description="payload sent until then")
    time_s: float = Field(description="since the job's first step")
    compute_s: float = Field(description="time of one step's computing then")


class TrialPublic(BaseModel):
    """A point and what came of it."""

    sequence: int = Field(description="the number of its last change")
    number: int
    kind: Kind
    point: dict[str, Any] = Field(description="the values it tries, by path")
    state: State
    reason: str = Field(description="why it ended as it did, or what it waits for")
    jobs: list[str] = Field(description="one for each of its seeds")
    seen: list[SeenPublic]
    rungs: list[int] = Field(description="the steps at which it was compared with others")
    quality: float | None = Field(description="at the end, the worst of its seeds")
    cost: float | None = Field(description="what it took to reach the floor")
    total_bytes: float | None
    took_s: float
    knob_version: int | None
    turned: dict[str, Any] = Field(description="the last values of knobs that were turned")


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
    next_after: int = Field(description="send it as `after` for what follows: the last number here, or `after` itself")
    has_more: bool = Field(description="whether there is more now")


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
    created_at: datetime = Field(description="when it was last sent or used")
    owner: str = Field(default="", description="the name of the token that first sent it")


class MePublic(BaseModel):
    """Who is asking."""

    name: str = Field(description="the token's name: jobs it submits have it as owner")
    role: Literal["viewer", "operator", "admin"]
    can: list[Literal["look", "steer", "remove"]] = Field(
        description="steer: submit, turn knobs, stop, download; remove: strike jobs from the books"
    )
    token: str = Field(description="the token's id, as `raysync token list` shows it")
    expires_at: datetime | None
    version: str


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

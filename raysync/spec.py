"""The job specification: one pydantic model for YAML, JSON, REST and Python; importing it needs neither torch nor
ray.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

from raysync.compress import AnyCodec, Identity
from raysync.compress.warmup import codec_for_round
from raysync.errors import FieldProblem, SpecError
from raysync.metrics import is_evaluation
from raysync.optim import SGD, AnyOptimizer
from raysync.optim.schedule import AnyLRSchedule, Constant
from raysync.pipeline import AnySchedule
from raysync.sync import BSP, AnyStrategy
from raysync.tasks import AnyTask
from raysync.value import Shape, Value

Partition = Literal["seldp", "defdp"]
TransportKind = Literal["auto", "direct", "ray"]
Name = Annotated[
    str,
    Shape(
        r"[a-z0-9][a-z0-9._-]{0,62}",
        "a name has at most 63 small letters, digits, dots, dashes and underscores; the first is a letter or a digit",
    ),
]
Label = Annotated[str, Field(min_length=1, max_length=128)]


class Compression(Value):
    """What workers send to shards (`push`) and shards to workers (`pull`)."""

    push: AnyCodec = Identity()
    pull: AnyCodec = Identity()
    error_feedback: bool = True
    """Keep what was not sent and add it next time, on both sides; false only as a control."""
    dense_rounds: int = Field(default=0, ge=0)
    """Send everything in the first rounds, while training is fragile."""
    ramp_rounds: int = Field(default=0, ge=0)
    """After that, come down to a codec's ratio over so many rounds (codecs without one stay dense so long)."""
    min_bytes: int = Field(default=0, ge=0)
    """Send blocks smaller than this uncompressed."""

    @field_validator("error_feedback")
    @classmethod
    def _feedback_converges(cls, error_feedback: bool, info: Any) -> bool:
        for name in ("push", "pull") if error_feedback else ():
            codec = info.data.get(name)
            if codec is not None and codec.error_bound >= 1:
                raise ValueError(
                    f"{name} {codec.kind} errs by up to {codec.error_bound:.3g} times the vector, so residuals grow: "
                    "make it finer (randomk: unbiased false; qsgd: more levels, shorter chunks), or set "
                    "error_feedback: false"
                )
        return error_feedback

    def push_codec(self, round: int, size_bytes: int) -> AnyCodec:
        """Return what a worker sends a block with in a round."""
        return self._for_round(self.push, round, size_bytes)

    def pull_codec(self, round: int, size_bytes: int) -> AnyCodec:
        """Return what a shard answers with."""
        return self._for_round(self.pull, round, size_bytes)

    def _for_round(self, codec: AnyCodec, round: int, size_bytes: int) -> AnyCodec:
        return codec_for_round(codec, round, size_bytes, self.dense_rounds, self.ramp_rounds, self.min_bytes)


class Injection(Value):
    """Data injection for skewed data: ceil(alpha * N) workers share a fraction beta of their batch with all."""

    alpha: float = Field(gt=0, le=1)
    beta: float = Field(gt=0, le=1)


class Data(Value):
    """Who reads which samples."""

    partition: Partition = "seldp"
    batch_size: int = Field(default=32, ge=1)
    """Samples per worker and step, at most."""
    injection: Injection | None = None
    label_skew: float | None = Field(default=None, gt=0, le=1)
    """Share of the samples dealt out by label instead of at random; 1 gives each chunk few labels."""


class Scale(Value):
    """How many actors, and what each may use."""

    workers: int = Field(default=4, ge=1, le=4096)
    min_workers: int = Field(default=1, ge=1)
    """The fewest the knob `workers` may ask for, and the fewest that train: with less the job waits for more."""
    max_workers: int | None = Field(default=None, ge=1)
    """Default: `workers`."""
    shards: int = Field(default=1, ge=1, le=1024)
    stages: int = Field(default=1, ge=1, le=256)
    replicas: int | None = Field(default=None, ge=0, le=1)
    """Backups of each shard: with 1, one that dies loses nothing. Default: 1 with several shards or nodes, else 0."""
    spares: int = Field(default=0, ge=0, le=64)
    """Workers that are up, with the model built, and no members: one takes the place of a worker that dies, at once."""
    cpus_per_worker: float = Field(default=1, gt=0)
    gpus_per_worker: float = Field(default=0, ge=0)
    placement: Literal["spread", "pack"] = "spread"
    """Put workers on as many nodes as there are, or on as few as will do."""
    shards_in: Literal["actors", "workers"] = "actors"
    """Where shards live: in processes of their own, or in those of the first workers, which saves half the traffic of
    uncompressed training but loses the shard with its worker.
    """
    block_bytes: int | None = Field(default=None, ge=64, le=2**28)
    """Bytes of fp32 parameters per block; a block is encoded, sent and owned as one piece. Default: an eighth of the
    vector, between 512 KiB and 2 MiB.
    """

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_workers > self.workers:
            raise ValueError(f"min_workers={self.min_workers} must be <= workers={self.workers}")
        if self.shards_in == "workers" and self.shards > self.workers:
            raise ValueError(f"shards_in='workers' needs shards={self.shards} to be <= workers={self.workers}")
        if self.max_workers is not None and self.max_workers < self.workers:
            raise ValueError(f"max_workers={self.max_workers} must be >= workers={self.workers}")
        return self


class Target(Value):
    """Stop once an evaluation metric is good enough: a loss or distance at most, anything else at least `value`."""

    metric: str
    value: float = Field(allow_inf_nan=False)

    def reached(self, metrics: Mapping[str, float]) -> bool:
        """Return whether `metrics` satisfies the target."""
        found = metrics.get(self.metric)
        if found is None:
            return False
        return found <= self.value if self.metric.endswith(("loss", "distance")) else found >= self.value


class Budget(Value):
    """When the job ends: after `steps` at the latest."""

    steps: int = Field(default=1000, ge=1)
    time_s: float | None = Field(default=None, gt=0)
    target: Target | None = None


class Checkpoint(Value):
    """How often the whole state is saved, and how many are kept."""

    every_rounds: int | None = Field(default=None, ge=1)
    """Synchronisations between two checkpoints; None saves none on its own."""
    keep: int = Field(default=3, ge=1)


class Transport(Value):
    """How bytes travel between actors."""

    kind: TransportKind = "auto"
    """Over sockets of their own, through Ray, or sockets if a probe finds that they work."""
    limit_mbit: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """The most that each actor sends, in megabits per second; None for as much as goes."""
    latency_ms: float = Field(default=0.0, ge=0, le=10_000, allow_inf_nan=False)
    """How much later everything an actor sends arrives, in milliseconds: a long line on one machine."""


def _transport(given: Any) -> Any:
    return {"kind": given} if isinstance(given, str) else given


class Evaluation(Value):
    """How often the model is judged on the evaluation data."""

    every: int = Field(default=100, ge=1)
    """Steps between two evaluations."""
    on: Literal["workers", "evaluator"] = "workers"
    """Who judges: the workers, a part of the data each at the same step; or a process of its own beside them, to which
    the first worker sends the model, and for which training does not wait.
    """


class JobSpec(Value):
    """A training job."""

    name: Name = "job"
    task: AnyTask
    strategy: AnyStrategy = BSP()
    compression: Compression = Compression()
    optimizer: AnyOptimizer = SGD()
    lr_schedule: AnyLRSchedule = Constant()
    outer: AnyOptimizer | None = None
    """The server's update rule; None leaves it to the strategy."""
    inner_state: Literal["keep", "average", "reset"] = "keep"
    """What becomes of a worker's own optimizer state at a synchronisation."""
    data: Data = Data()
    scale: Scale = Scale()
    schedule: AnySchedule | None = None
    """How a pipeline of more than one stage runs."""
    budget: Budget = Budget()
    checkpoint: Checkpoint = Checkpoint()
    transport: Annotated[Transport, BeforeValidator(_transport, json_schema_input_type=Transport | TransportKind)] = (
        Transport()
    )
    """A plain word stands for its `kind`."""
    eval: Evaluation = Evaluation()
    eval_every: int | None = Field(default=None, ge=1, exclude=True)
    """The older name of `eval.every`, still accepted."""
    straggler_deadline: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """So many seconds after the first worker's report a step waits for the others; whoever comes later is left behind,
    and sends what it has with its next round. None: a step waits for all.
    """
    on_divergence: Literal["skip", "rollback", "fail"] = "skip"
    """What a batch does whose loss or update holds a NaN or an infinity: it counts for nothing, until there are too
    many; or takes the job back to its last checkpoint, at half the learning rate, a few times; or ends the job.
    """
    labels: dict[Label, Label] = Field(default_factory=dict, max_length=32)
    """Words to find the job by; they change nothing of it."""
    seed: int = Field(default=0, ge=0, lt=2**32)

    @field_validator("budget")
    @classmethod
    def _target_exists(cls, budget: Budget, info: Any) -> Budget:
        task, target = info.data.get("task"), budget.target
        if task is None or target is None:
            return budget
        if not is_evaluation(target.metric):
            raise ValueError(f"target metric {target.metric!r} must be an evaluation metric, eval/...")
        if task.metric_names is not None and target.metric not in task.metric_names:
            raise ValueError(f"task {task.kind} has no metric {target.metric!r}; it has {', '.join(task.metric_names)}")
        return budget

    @model_validator(mode="after")
    def _older_names(self) -> Self:
        if self.eval_every is None:
            return self
        if "eval" in self.model_fields_set:
            raise ValueError("eval_every is the older name of eval.every: give only that one")
        # The model is frozen for all but its own validation.
        self.__dict__ |= {"eval": Evaluation(every=self.eval_every), "eval_every": None}
        self.__pydantic_fields_set__ ^= {"eval", "eval_every"}
        return self

    @model_validator(mode="after")
    def _combinations(self) -> Self:
        if self.data.label_skew is not None and not self.task.has_labels:
            raise ValueError(
                f"data.label_skew={self.data.label_skew} needs a task with labels; {self.task.kind} has none"
            )
        if self.outer is not None and self.strategy.default_outer(self.optimizer) is self.optimizer:
            raise ValueError(
                f"outer={self.outer.kind!r} with strategy {self.strategy.kind!r}: its server runs `optimizer`; "
                "leave `outer` out and set `optimizer`"
            )
        exchange = self.strategy.needs.exchange
        if self.inner_state == "reset" and exchange == "sparse_parts":
            raise ValueError(
                "inner_state='reset' needs rounds of all parameters; with async_sparse choose keep or average"
            )
        if self.inner_state != "keep" and exchange not in ("displacement", "sparse_parts"):
            raise ValueError(
                f"inner_state={self.inner_state!r} needs a strategy that averages parameters; "
                f"{self.strategy.kind!r} sends gradients"
            )
        if (self.scale.stages > 1) != (self.schedule is not None):
            raise ValueError(
                f"scale.stages={self.scale.stages}: `schedule` is needed for more than one stage, and only then"
            )
        schedule = self.schedule
        if schedule is not None and schedule.is_asynchronous and "gradient" in self.strategy.needs.exchange:
            raise ValueError(
                f"strategy {self.strategy.kind!r} needs the gradient of the whole model at one set of weights; under "
                f"{schedule.kind!r} every stage has another: choose gpipe or one_f_one_b, or a strategy that averages "
                "parameters (local_sgd, selsync, diloco, async_sparse)"
            )
        if self.straggler_deadline is not None and self.why_it_waits:
            raise ValueError(f"straggler_deadline={self.straggler_deadline:g}: {self.why_it_waits}")
        if self.on_divergence == "rollback" and self.checkpoint.every_rounds is None:
            raise ValueError(
                "on_divergence='rollback' goes back to the last checkpoint: set checkpoint.every_rounds, or choose skip"
            )
        if self.scale.stages > 1 and self.strategy.needs.pacing == "bounded":
            raise ValueError(f"strategy {self.strategy.kind!r} has no pipelines; choose async_sparse")
        if self.scale.stages > 1 and self.scale.spares:
            raise ValueError("scale.spares stand by for whole workers; leave it out for jobs with stages")
        if self.scale.stages > 1 and self.strategy.needs.lands_late:
            raise ValueError(
                "strategy.landing='late' has no pipelines; leave it out, or choose async_sparse, where all that is "
                "averaged lands late"
            )
        if self.scale.stages > 1 and self.scale.shards_in == "workers":
            raise ValueError("scale.shards_in='workers' is for jobs without stages; leave it out")
        return self

    @property
    def has_evaluator(self) -> bool:
        """Whether models are judged in a process of their own: asked for, or needed since no worker has the model that
        is judged.
        """
        return self.eval.on == "evaluator" or self.scale.stages > 1 or self.strategy.needs.pacing == "free_running"

    @property
    def why_it_waits(self) -> str:
        """Why no step of the job may go on without a worker that is late; empty if one may."""
        needs = self.strategy.needs
        if needs.pacing != "lock_step" or needs.exchange not in ("displacement", "gradient"):
            return f"with strategy {self.strategy.kind!r} as it is set no worker waits for what others send"
        if self.scale.stages > 1:
            return "the stages of a pipeline wait for each other; leave it out"
        if getattr(self.strategy, "overlap", False) or getattr(needs, "lands_late", False):
            return "what is decided must rest on the reports of its own step: leave strategy.overlap and landing out"
        if self.decision_lead:
            return (
                "its decisions run ahead of the reports, unless it is submitted with a straggler_deadline, however long"
            )
        if not self.compression.error_feedback:
            return "what comes late is kept as a residual: set compression.error_feedback"
        return ""

    @property
    def decision_lead(self) -> int:
        """How many steps a decision may run ahead of the reports it rests on: none, or one and as many as the last
        stage of a pipeline is ahead of the first. A deadline is looked at where all reports should be there.
        """
        return 1 + self.stage_lead if self.strategy.needs.decides_ahead and self.straggler_deadline is None else 0

    @property
    def stage_lead(self) -> int:
        """By how many steps the last stage of a pipeline may be ahead of the first."""
        return 0 if self.schedule is None else self.schedule.delay(0, self.scale.stages)

    @property
    def server_optimizer(self) -> AnyOptimizer:
        """The server's update rule: the one given, or the strategy's own."""
        return self.outer or self.strategy.default_outer(self.optimizer)

    def lr_at(self, step: int) -> float:
        """Return the learning rate at a step."""
        return self.optimizer.lr * self.lr_schedule.factor(step, self.budget.steps)


def parse_spec(data: object) -> JobSpec:
    """Return the job `data` describes, or raise `SpecError` naming each field, its value and what would be right."""
    if not isinstance(data, Mapping):
        raise SpecError((FieldProblem("(top level)", data, "a job specification is a mapping of fields"),))
    try:
        return JobSpec.model_validate(data)
    except ValidationError as error:
        raise SpecError(tuple(describe(data, detail) for detail in error.errors())) from error


def read_spec(path: str | Path) -> JobSpec:
    """Return the job a YAML or JSON file describes."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise SpecError((FieldProblem(str(path), None, f"cannot be read: {error.strerror}"),)) from error
    return parse_text(content, str(path))


class _Loader(yaml.SafeLoader):
    """YAML in which on, off, yes and no are words, as since version 1.2: `eval.on` is a field."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag != "tag:yaml.org,2002:bool"]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("true|True|TRUE|false|False|FALSE"), list("tTfF"))


def load_yaml(content: bytes) -> Any:
    """Return what some YAML or JSON holds; raise `yaml.YAMLError` or `UnicodeDecodeError` if it is neither."""
    return yaml.load(content.decode(), _Loader)


def parse_text(content: bytes, source: str) -> JobSpec:
    """Return the job some YAML or JSON describes; `source` is where it comes from."""
    try:
        data = load_yaml(content)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SpecError((FieldProblem(source, None, f"is not YAML: {error}"),)) from error
    if data is None:
        raise SpecError((FieldProblem(source, None, "is empty; it must hold a job, see the README for one"),))
    return parse_spec(data)


def describe(data: Any, detail: Any, model: Any = None) -> FieldProblem:
    """Turn one pydantic error about `data` into a path as the user wrote it, the value there, and a remedy."""
    path, parent = _locate(data, detail["loc"])
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "extra_forbidden":
        names = _field_names(detail["loc"], model or JobSpec)
        close = difflib.get_close_matches(str(detail["loc"][-1]), names, 1)
        message = "there is no such field" + (
            f"; did you mean {close[0]!r}?" if close else f"; known here: {', '.join(names)}" if names else ""
        )
        others = _members_with(detail["loc"], model or JobSpec)
        if others:
            message = f"there is no such field; {detail['loc'][-1]!r} belongs to kind {' or '.join(others)}"
    if detail["type"] == "missing":
        return FieldProblem(path, None, "this field is required")
    if detail["type"] == "union_tag_not_found":
        return FieldProblem(f"{path}.kind", None, "this field is required")
    if detail["type"] == "union_tag_invalid":
        return FieldProblem(f"{path}.kind", detail["ctx"]["tag"], f"must be one of {detail['ctx']['expected_tags']}")
    value = detail["input"]
    if isinstance(value, Value):
        value = parent
    return FieldProblem(path or "(top level)", value, message)


def _locate(data: Any, loc: tuple[Any, ...]) -> tuple[str, Any]:
    """Return the dotted path without pydantic's union tags, and the value found on the way."""
    path: list[str] = []
    for index, part in enumerate(loc):
        is_tag = isinstance(data, Mapping) and part not in data and (index < len(loc) - 1 or data.get("kind") == part)
        if is_tag:
            continue
        if isinstance(data, Mapping) and part in data:
            data = data[part]
        path.append(str(part))
    return ".".join(path), data


def _members_with(loc: tuple[Any, ...], model: Any) -> list[str]:
    """Return which other members of the family that refused the last part of `loc` have such a field."""
    if len(loc) < 3:
        return []
    for part in loc[:-2]:
        model = model.model_fields[part].annotation if part in getattr(model, "model_fields", ()) else model
    members = [member for member in getattr(model, "__args__", ()) if hasattr(member, "model_fields")]
    with_kind = [member for member in members if "kind" in member.model_fields and loc[-1] in member.model_fields]
    return [str(member.model_fields["kind"].default) for member in with_kind]


def _field_names(loc: tuple[Any, ...], model: Any) -> list[str]:
    """Return the fields of the part of `model` that refused the last part of `loc`."""
    for part in loc[:-1]:
        if part in getattr(model, "model_fields", ()):
            model = model.model_fields[part].annotation
        members = [member for member in getattr(model, "__args__", (model,)) if hasattr(member, "model_fields")]
        tagged = [
            member
            for member in members
            if "kind" in member.model_fields and member.model_fields["kind"].default == part
        ]
        model = tagged[0] if tagged else members[0] if len(members) == 1 else model
    return sorted(getattr(model, "model_fields", ()))


def as_written(value: Any) -> Any:
    """Return a job, or a part of one, as plain data with the fields that were given and no defaults.

    `kind` is always among them: it says which member of a family is meant.
    """
    if isinstance(value, Value):
        given = [name for name in type(value).model_fields if name in value.model_fields_set or name == "kind"]
        return {name: as_written(getattr(value, name)) for name in given}
    if isinstance(value, Mapping):
        return {name: as_written(found) for name, found in value.items()}
    if isinstance(value, list | tuple):
        return [as_written(found) for found in value]
    return "Infinity" if value == float("inf") else value

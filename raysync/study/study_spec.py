"""The specification of a study: what is searched, what for, and how."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from raysync.errors import FieldProblem, SpecError
from raysync.knobs import KNOB_FIELDS, field_at, initial_knobs, knob_of
from raysync.metrics import is_evaluation
from raysync.spec import JobSpec, Name, describe, load_yaml, parse_spec
from raysync.study.space import Space, corner, ordered, with_point
from raysync.value import Value

Cost = Literal["bytes", "predicted_s", "wall_s"]


class Floor(Value):
    """How good a model must be at the end for its trial to count."""

    metric: str = "eval/accuracy"
    at_least: float | None = Field(default=None, allow_inf_nan=False)
    at_most: float | None = Field(default=None, allow_inf_nan=False)

    @model_validator(mode="after")
    def _is_one_bound(self) -> Self:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError("give either `at_least` or `at_most`")
        if not is_evaluation(self.metric):
            raise ValueError(f"{self.metric!r} must be an evaluation metric, eval/...")
        return self

    @property
    def is_upward(self) -> bool:
        """Whether more is better."""
        return self.at_least is not None

    @property
    def bound(self) -> float:
        """The value that must be reached."""
        return self.at_least if self.at_least is not None else self.at_most or 0.0

    def reached(self, value: float) -> bool:
        """Return whether a value is good enough."""
        return value >= self.bound if self.is_upward else value <= self.bound

    def promise(self, value: float) -> float:
        """Return what a value counts for while a trial runs: beyond the floor nothing, since then it is the cost that
        decides. Else whoever sends most would always be ahead.
        """
        return min(value, self.bound) if self.is_upward else max(value, self.bound)


class Objective(Value):
    """What is to be as small as possible among trials that reach the floor."""

    minimise: Cost = "bytes"
    """Payload sent until the floor was reached; the time that takes at `at_mbit` beside the computing; or the time it
    took here.
    """
    at_mbit: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """predicted_s: the rate of every worker's line, in megabits per second."""

    @model_validator(mode="after")
    def _has_a_rate(self) -> Self:
        if (self.minimise == "predicted_s") != (self.at_mbit is not None):
            raise ValueError("at_mbit is needed for minimise: predicted_s, and only there")
        return self

    @property
    def unit(self) -> str:
        """The unit of the cost."""
        return "bytes" if self.minimise == "bytes" else "s"


class Every(Value):
    """Let every trial run to its end."""

    kind: Literal["none"] = "none"


class Asha(Value):
    """Stop trials early that are not among the best at their step (asynchronous successive halving)."""

    kind: Literal["asha"] = "asha"
    grace_steps: int = Field(default=50, ge=1)
    """No trial is stopped before."""
    reduction: int = Field(default=3, ge=2)
    """At each rung the best of so many go on, and the next rung is so many times further."""


class Median(Value):
    """Stop trials early whose best value is worse than the median of the others' means."""

    kind: Literal["median"] = "median"
    grace_steps: int = Field(default=50, ge=1)
    min_trials: int = Field(default=3, ge=1)


class Population(Value):
    """Population-based training: all trials run at once, and those that do worst take over the knobs of those that do
    best, with a change. Jobs are not started again: their knobs are turned.
    """

    kind: Literal["pbt"] = "pbt"
    every_steps: int = Field(default=100, ge=1)
    """Steps between two comparisons."""
    quantile: float = Field(default=0.25, gt=0, le=0.5)
    """The share that takes over, and the share it takes over from."""


class Random(Value):
    """Points drawn at random."""

    kind: Literal["random"] = "random"


class OptunaSearch(Value):
    """Points suggested by Optuna's sampler for several objectives."""

    kind: Literal["optuna"] = "optuna"
    startup_trials: int = Field(default=6, ge=1)
    """So many points are drawn at random first."""


class StudySpec(Value):
    """A search over the fields of a job."""

    name: Name
    text: str = ""
    """What question it answers."""
    base: dict[str, Any]
    """The job whose fields are searched, as in a job's own file."""
    space: Space = Field(min_length=1, max_length=32)
    floor: Floor
    objective: Objective = Objective()
    scheduler: Annotated[Every | Asha | Median | Population, Field(discriminator="kind")] = Asha()
    search: Annotated[Random | OptunaSearch, Field(discriminator="kind")] = OptunaSearch()
    trials: int = Field(default=24, ge=1, le=1_000)
    """How many points are tried, the job itself and the dense one among them."""
    seeds: int = Field(default=1, ge=1, le=32)
    """Jobs per point, each with another seed; a point counts if all of them reach the floor."""
    max_concurrent: int | None = Field(default=None, ge=1)
    """Trials at once; None for as many as the cluster holds."""
    max_failures: int = Field(default=4, ge=1)
    """The study ends after so many trials, with none between, have failed for the same reason."""
    seed: int = Field(default=0, ge=0, lt=2**32)

    @field_validator("base")
    @classmethod
    def _is_a_job(cls, base: dict[str, Any]) -> dict[str, Any]:
        _job(base, "base")
        return base

    @model_validator(mode="after")
    def _can_be_searched(self) -> Self:
        for path in ordered(self.space):
            strangers = [other for other in self.space[path].when if other not in self.space]
            if strangers:
                raise ValueError(f"`when` of {path} names {', '.join(strangers)}, which the space does not have")
            self._try(path)
        job = self.job({})
        names = job.task.metric_names
        if names is not None and self.floor.metric not in names:
            raise ValueError(
                f"task {job.task.kind} has no metric {self.floor.metric!r} for the floor; it has {', '.join(names)}"
            )
        if isinstance(self.scheduler, Population):
            self._check_population(job)
            return self
        try:
            _ = self.dense
        except SpecError as error:
            raise ValueError(f"the dense baseline, this job under bsp, cannot be: {error.problems[0]}") from None
        return self

    def _try(self, path: str) -> None:
        """Raise `ValueError` where a field cannot have the values it may have."""
        for value in self.space[path].corners:
            point = corner(self.space, path, value)
            if path in point:
                _job(self._with(point), f"space.{path}={value!r}")

    def _check_population(self, job: JobSpec) -> None:
        knobs = initial_knobs(job).values
        others = [path for path in self.space if knob_of(path) not in knobs]
        if others:
            known = ", ".join(KNOB_FIELDS[name] for name in sorted(knobs) if name in KNOB_FIELDS)
            raise ValueError(f"scheduler pbt turns knobs of running jobs; {', '.join(others)} is none of them: {known}")
        if any(dimension.when for dimension in self.space.values()):
            raise ValueError("scheduler pbt has no use for `when`: every knob is always there")
        if self.seeds > 1:
            raise ValueError("scheduler pbt has no use for seeds: no two jobs have their knobs turned alike")

    def job(self, point: Mapping[str, Any]) -> JobSpec:
        """Return the job at a point; raise `SpecError` if there is none."""
        return parse_spec(self._with(point))

    def _with(self, point: Mapping[str, Any]) -> dict[str, Any]:
        kinds = {path: value for path, value in point.items() if path.endswith(".kind")}
        try:
            like = parse_spec(with_point(self.base, kinds))
        except SpecError:  # a kind that needs more than its name
            like = parse_spec(self.base)
        return with_point(self.base, point, lambda path: kind_at(like, path))

    @property
    def dense(self) -> JobSpec:
        """The job of the baseline: the same training, everything sent at every step."""
        own = ("strategy", "compression", "outer", "inner_state")
        base = {name: value for name, value in self.base.items() if name not in own}
        schedule = parse_spec(self.base).schedule
        if schedule is not None and schedule.is_asynchronous:
            base["schedule"] = {"kind": "one_f_one_b"}
        return parse_spec({**base, "strategy": {"kind": "bsp"}})


def kind_at(value: Any, path: str) -> str | None:
    """Return of which kind a part of a job or a study is; None if it has none."""
    return getattr(field_at(value, path), "kind", None)


def parse_study(data: object) -> StudySpec:
    """Return the study `data` describes, or raise `SpecError` naming each field, its value and what would be right."""
    if not isinstance(data, Mapping):
        raise SpecError((FieldProblem("(top level)", data, "a study is a mapping of fields"),), "the study")
    if "task" in data and "base" not in data:
        remedy = (
            "this is a job, not a search: search around it with raysync tune NAME --job FILE, or put it under `base` "
            "of a file that has `space` and `floor`, too"
        )
        raise SpecError((FieldProblem("task", None, remedy),), "the study")
    try:
        return StudySpec.model_validate(data)
    except ValidationError as error:
        found = (describe(data, detail, StudySpec) for detail in error.errors())
        raise SpecError(tuple(_plain(problem) for problem in found), "the study") from error


def _plain(problem: FieldProblem) -> FieldProblem:
    """Leave out a whole study as the value that is wrong."""
    return problem._replace(value=None) if isinstance(problem.value, Mapping) else problem


def read_study(path: Path) -> StudySpec:
    """Return the study a YAML or JSON file describes."""
    try:
        data = load_yaml(path.read_bytes())
    except OSError as error:
        raise SpecError((FieldProblem(str(path), None, f"cannot be read: {error.strerror}"),), "the study") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SpecError((FieldProblem(str(path), None, f"is not YAML: {error}"),), "the study") from error
    return parse_study(data)


def _job(data: Mapping[str, Any], where: str) -> JobSpec:
    try:
        return parse_spec(data)
    except SpecError as error:
        problem = error.problems[0]
        raise ValueError(f"{where} makes no job: {problem}") from None

"""What a job may be made of: every family, its members, and their schemas, read from the unions themselves."""

from __future__ import annotations

import inspect
from functools import lru_cache
from typing import Any, get_args

from pydantic import BaseModel, Field

from raysync.compress import AnyCodec
from raysync.events import BY_KIND, AnyEvent
from raysync.knobs import KNOB_FIELDS
from raysync.metrics import TOLD, Metric
from raysync.optim import AnyOptimizer
from raysync.optim.schedule import AnyLRSchedule
from raysync.pipeline import AnySchedule
from raysync.sync import AnyStrategy
from raysync.sync.signal import AnySignal
from raysync.tasks import AnyTask
from service.http.event_schemas import data_schema

_FAMILIES: dict[str, Any] = {
    "tasks": AnyTask,
    "strategies": AnyStrategy,
    "signals": AnySignal,
    "codecs": AnyCodec,
    "optimizers": AnyOptimizer,
    "lr_schedules": AnyLRSchedule,
    "schedules": AnySchedule,
}


class Component(BaseModel):
    """A member of a family."""

    kind: str
    summary: str = Field(description="what it is, in a sentence")
    schema_: dict[str, Any] = Field(alias="schema", description="its fields, as JSON Schema")


class MetricPublic(BaseModel):
    """A metric that jobs tell."""

    name: str
    unit: str
    combine: str = Field(description="how the workers' values become the job's")
    is_total: bool = Field(description="whether it only grows")
    prometheus: str | None = Field(description="its family in `GET /metrics`")
    label: str = Field(description="what progress lines call it; empty if they need no word or leave it out")
    summary: str = Field(description="what it is, in a sentence")


class EventKind(BaseModel):
    """A kind of event that jobs tell."""

    kind: str
    summary: str = Field(description="what it says, in a sentence")
    schema_: dict[str, Any] = Field(alias="schema", description="its `data`, as JSON Schema")


class Catalogue(BaseModel):
    """Everything a job may be made of, and everything it tells."""

    families: dict[str, list[Component]]
    knobs: dict[str, str] = Field(description="what may turn while a job runs, and the field it is")
    metrics: list[MetricPublic] = Field(default=[], description="a task may measure other evaluations, `eval/...`")
    events: list[EventKind] = []


@lru_cache(maxsize=1)
def catalogue() -> Catalogue:
    """Return the catalogue."""
    families = {name: [_component(member) for member in _members(union)] for name, union in _FAMILIES.items()}
    return Catalogue(
        families=families,
        knobs={**KNOB_FIELDS, "pause": "holds all workers at the next decision"},
        metrics=[_metric(metric) for metric in TOLD],
        events=[_event(body) for body in BY_KIND.values()],
    )


def _event(body: type[AnyEvent]) -> EventKind:
    return EventKind(kind=body.kind, summary=_summary(body), schema=data_schema(body))


def _metric(metric: Metric) -> MetricPublic:
    return MetricPublic(
        name=metric.name,
        unit=metric.unit,
        combine=metric.combine.value,
        is_total=metric.is_total,
        prometheus=metric.prometheus.family if metric.prometheus is not None else None,
        label=metric.short.label if metric.short is not None else "",
        summary=metric.text,
    )


def _members(union: Any) -> list[type[BaseModel]]:
    """Return the models of a union, annotated or not."""
    if isinstance(union, type):
        return [union]
    return [member for part in get_args(union) for member in _members(part) if _is_model(part) or get_args(part)]


def _is_model(part: Any) -> bool:
    return isinstance(part, type) and issubclass(part, BaseModel)


def _component(member: type[BaseModel]) -> Component:
    kind = str(member.model_fields["kind"].default)
    return Component(kind=kind, summary=_summary(member), schema=member.model_json_schema())


def _summary(member: type[Any]) -> str:
    """Return the first paragraph of what a member says of itself, in one line."""
    return " ".join(inspect.cleandoc(member.__doc__ or "").split("\n\n")[0].split())

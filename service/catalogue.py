"""What a job may be made of: every family, its members, and their schemas, read from the unions themselves."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, get_args

from pydantic import BaseModel, Field

from raysync.compress import AnyCodec
from raysync.knobs import KNOB_FIELDS
from raysync.optim import AnyOptimizer
from raysync.optim.schedule import AnySchedule as AnyLRSchedule
from raysync.pipeline import AnySchedule
from raysync.sync import AnyStrategy
from raysync.sync.signal import AnySignal
from raysync.tasks import AnyTask

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
    summary: str = Field(description="what it is, in a line")
    schema_: dict[str, Any] = Field(alias="schema", description="its fields, as JSON Schema")


class Catalogue(BaseModel):
    """Everything a job may be made of."""

    families: dict[str, list[Component]]
    knobs: dict[str, str] = Field(description="what may turn while a job runs, and the field it is")


@lru_cache(maxsize=1)
def catalogue() -> Catalogue:
    """Return the catalogue."""
    families = {name: [_component(member) for member in _members(union)] for name, union in _FAMILIES.items()}
    return Catalogue(families=families, knobs={**KNOB_FIELDS, "pause": "holds all workers at the next decision"})


def _members(union: Any) -> list[type[BaseModel]]:
    """Return the models of a union, annotated or not."""
    if isinstance(union, type):
        return [union]
    return [member for part in get_args(union) for member in _members(part) if _is_model(part) or get_args(part)]


def _is_model(part: Any) -> bool:
    return isinstance(part, type) and issubclass(part, BaseModel)


def _component(member: type[BaseModel]) -> Component:
    summary = (member.__doc__ or "").strip().splitlines()[0] if member.__doc__ else ""
    kind = str(member.model_fields["kind"].default)
    return Component(kind=kind, summary=summary, schema=member.model_json_schema())

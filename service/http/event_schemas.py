"""What events hold, for the OpenAPI document: one schema per kind, made of the union itself."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec

from raysync.events import BY_KIND, AnyEvent, Metrics
from raysync.metrics import TOLD, Metric

_REF = "#/components/schemas/{name}"


def data_schema(body: type[AnyEvent]) -> dict[str, Any]:
    """Return the JSON Schema of an event's data, whole in itself; more fields may come with other versions."""
    if body is Metrics:
        properties = {metric.name: {"type": ["number", "null"], "description": told_of(metric)} for metric in TOLD}
        by_stage = {
            f"^{metric.name}/[0-9]+$": {"type": ["number", "null"], "description": f"Of one stage: {told_of(metric)}"}
            for metric in TOLD
            if metric.by_stage
        }
        return {
            "type": "object",
            "properties": properties,
            "patternProperties": by_stage,
            "additionalProperties": True,
        }
    _, parts = msgspec.json.schema_components([body], ref_template="{name}")
    return _inlined(parts[body.__name__], parts)


def told_of(metric: Metric) -> str:
    """Return a metric's sentence with its unit."""
    return f"{metric.text} Unit: {metric.unit}." if metric.unit else metric.text


def documented_by_kind(event: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the schema of an event, which says `data: object`, with what `data` is for each kind, and the schemas that
    it then refers to. A kind that is not among them may hold anything.
    """
    schemas = {f"{body.__name__}Data": data_schema(body) for body in BY_KIND.values()}
    cases = [_case(body) for body in BY_KIND.values()]
    other = {"title": "Other", "properties": {"kind": {"not": {"enum": [*BY_KIND]}}}}
    return {"EventPublic": {**event, "oneOf": [*cases, other]}, **schemas}


def _inlined(schema: dict[str, Any], parts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return a schema with the parts it refers to in their places."""
    if "$ref" in schema:
        return _inlined(parts[schema["$ref"]], parts)
    return {name: _inlined(found, parts) if isinstance(found, dict) else found for name, found in schema.items()}


def _case(body: type[AnyEvent]) -> dict[str, Any]:
    properties = {"kind": {"const": body.kind}, "data": {"$ref": _REF.format(name=f"{body.__name__}Data")}}
    return {"title": body.__name__, "description": inspect.getdoc(body), "properties": properties}

"""A schedule as it really ran: what every stage did and when, as Chrome's trace format and for a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from raysync.address import Address
from raysync.pipeline.base import Kind


class Traced(NamedTuple):
    """One operation of a stage."""

    who: Address
    kind: Kind
    step: int
    microbatch: int
    start_s: float
    end_s: float


def chrome_trace(spans: Sequence[Traced]) -> str:
    """Return a trace that chrome://tracing and Perfetto read: a process for every pipeline, a row for every stage."""
    first_s = min((span.start_s for span in spans), default=0.0)
    events: list[dict[str, Any]] = []
    for who in sorted({span.who for span in spans}):
        events.append(_named("process_name", who, f"pipeline {who.index}"))
        events.append(_named("thread_name", who, f"stage {who.stage}"))
    for span in spans:
        events.append(
            {
                "name": f"{span.kind.value} {span.step}.{span.microbatch}",
                "cat": span.kind.value,
                "ph": "X",
                "pid": span.who.index,
                "tid": span.who.stage,
                "ts": round((span.start_s - first_s) * 1e6, 3),
                "dur": round((span.end_s - span.start_s) * 1e6, 3),
                "args": {"step": span.step, "microbatch": span.microbatch},
            }
        )
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def utilisation(spans: Sequence[Traced]) -> dict[Address, float]:
    """Return for every stage the share of the time, from its first operation to its last, in which it computed."""
    by_stage: dict[Address, list[Traced]] = {}
    for span in spans:
        by_stage.setdefault(span.who, []).append(span)
    return {
        who: sum(span.end_s - span.start_s for span in found)
        / max(1e-12, max(span.end_s for span in found) - min(span.start_s for span in found))
        for who, found in by_stage.items()
    }


def _named(kind: str, who: Address, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": who.index, "tid": who.stage, "args": {"name": name}}

"""One stream for many jobs and studies: what they tell and how they go, for lists, charts and dashboards."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import StreamingResponse

from service.errors import BadRequest
from service.http.deps import Parts, PartsDep, Viewer
from service.http.problems import documented
from service.http.queries import Ids, Kinds, Labels, Numbers, labels_of, parts_of
from service.http.routes.history import ENDED, streaming
from service.http.routes.series import after_of
from service.http.views import study_summary_of, summary_of, trial_of
from service.store.studies import TrialRow
from service.streams.position import MAX_CHARS, Position, read_position
from service.streams.source import Shown
from service.streams.wanted import Wanted

router = APIRouter(tags=["history"])

_MESSAGES: dict[str, dict[str, Any]] = {
    "events": {"type": "array", "items": {"$ref": "#/components/schemas/EventPublic"}},
    "jobs": {"type": "array", "items": {"$ref": "#/components/schemas/JobSummary"}},
    "removed": {"type": "array", "items": {"type": "string"}},
    "studies": {"type": "array", "items": {"$ref": "#/components/schemas/StudySummary"}},
    "trials": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"study": {"type": "string"}, "trial": {"$ref": "#/components/schemas/TrialPublic"}},
        },
    },
    "gap": {"type": "object"},
    "end": {"type": "object"},
}
"""What `data` is, by `event`."""


def _case(event: str, data: dict[str, Any]) -> dict[str, Any]:
    text = {"type": "string", "contentMediaType": "application/json", "contentSchema": data}
    return {"title": event, "type": "object", "properties": {"event": {"const": event}, "data": text}}


_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Server-sent events; `id` is where to go on from.",
        "content": {
            "text/event-stream": {"schema": {"oneOf": [_case(event, data) for event, data in _MESSAGES.items()]}}
        },
    },
    **ENDED,
}


def _trial(study: str, row: TrialRow) -> str:
    return f'{{"study":"{study}","trial":{trial_of(row).model_dump_json()}}}'


SHOWN = Shown(
    lambda row, place: summary_of(row, place).model_dump_json(),
    lambda row, begun: study_summary_of(row, begun).model_dump_json(),
    _trial,
)
"""How rows become the JSON of a stream."""


@router.get("/stream", responses={**_STREAM, **documented(404)}, response_class=StreamingResponse)
async def stream_all(
    parts: PartsDep,
    caller: Viewer,
    jobs: Annotated[Ids | None, Query(description="these jobs; left out: all that live or come")] = None,
    studies: Annotated[
        Ids | None, Query(description="these studies; left out: all, if no jobs are named either")
    ] = None,
    labels: Annotated[Labels | None, Query(description="only jobs with these labels: `key` or `key:value`")] = None,
    kinds: Annotated[Kinds | None, Query(description="only events of these kinds; `none`: no events")] = None,
    summaries: Annotated[bool, Query(description="tell when what lists show of a job or study changes")] = True,
    after: Annotated[
        Numbers | None, Query(description="of named jobs: begin after these events, not with the next")
    ] = None,
    last_event_id: Annotated[
        str | None, Header(max_length=MAX_CHARS, description="the id of the last message had: it goes on after it")
    ] = None,
) -> Response:
    """Stream what all jobs and studies tell, or those that are named, as server-sent events.

    Messages come at most ten times a second, each with all that has happened since the last: `events` in their order by
    job, `jobs` and `studies` as lists show them, `trials`, `removed`. Where jobs or studies are
    named, `end` comes last.
    """
    named, searched = parts_of(jobs) if jobs else None, parts_of(studies) if studies else None
    await parts.pools.page(partial(_check, parts, named or (), searched or ()))
    chosen = frozenset() if kinds == "none" else frozenset(parts_of(kinds)) if kinds else None
    wanted = Wanted(named, searched, labels_of(labels), chosen, summaries)
    start = _start(last_event_id, named, after)
    if start.has_ended and wanted.is_named:
        return Response(status_code=204)
    content = parts.multiplex.read(wanted, start, is_resumed=last_event_id is not None)
    return streaming(parts, caller, content)


def _check(parts: Parts, jobs: Sequence[str], studies: Sequence[str]) -> None:
    """Raise if something that is named is not there."""
    for id in jobs:
        parts.store.jobs.get(id)
    for id in studies:
        parts.store.studies.get(id)


def _start(last_event_id: str | None, jobs: Sequence[str] | None, after: str | None) -> Position:
    if last_event_id is not None:
        try:
            return read_position(last_event_id.strip())
        except ValueError:
            raise BadRequest("header.Last-Event-ID", "send the id of the last message had, as it came") from None
    if after is not None and jobs is None:
        raise BadRequest("query.after", "it belongs to `jobs`: name them, or leave it out")
    known = dict(zip(jobs or (), after_of(after, jobs or ()), strict=True)) if after is not None else {}
    return Position(time.time(), time.time(), known)

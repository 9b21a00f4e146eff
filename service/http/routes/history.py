"""What a job tells: metrics and events, as pages and as streams, and its log."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import PlainTextResponse, StreamingResponse
from pydantic import Field

from raysync.value import Shape
from service.errors import BadRequest
from service.http.deps import Parts, PartsDep, Viewer
from service.http.problems import documented
from service.http.schemas import EventPage, JobId
from service.jobs.feed import as_json
from service.jobs.log_feed import LOG_END, is_from
from service.security.auth import Caller
from service.security.redaction import redacted
from service.store import EventRow

router = APIRouter(prefix="/jobs/{id}", tags=["history"])

_MAX_SEQUENCE = 2**53
_MAX_TAIL = 10_000
After = Annotated[int, Query(ge=-1, le=_MAX_SEQUENCE, description="only events with larger numbers")]
Limit = Annotated[int, Query(ge=1, le=2000)]
LastEventId = Annotated[str | None, Header(max_length=20, description="the last event had: it goes on after that one")]
_ActorName = Annotated[
    str, Field(max_length=40), Shape(r"[a-z]+(/[0-9]+)?", "an actor is worker/0, shard/1, coordinator or controller")
]
Actor = Annotated[_ActorName | None, Query(description="only lines of this actor, such as `worker/0`")]
_Kind = Annotated[
    str, Field(max_length=20), Shape(r"[a-z_]+", "a kind is a word in small letters, such as state, metrics or knobs")
]

ENDED: dict[int | str, dict[str, Any]] = {204: {"description": "It has ended, and `Last-Event-ID` is its end."}}
_SSE = {
    "type": "object",
    "description": "one server-sent event; `data` is JSON",
    "properties": {name: {"type": "string"} for name in ("id", "event", "data")} | {"retry": {"type": "integer"}},
}
STREAM: dict[int | str, dict[str, Any]] = {
    200: {"description": "Server-sent events, to the end.", "content": {"text/event-stream": {"schema": _SSE}}},
    **ENDED,
}
_STREAM_HEADERS = {"X-Accel-Buffering": "no"}


@router.get("/metrics", responses=documented(404), response_model=EventPage)
async def list_metrics(
    parts: PartsDep,
    caller: Viewer,
    id: JobId,
    after: After = -1,
    limit: Limit = 500,
    points: Annotated[
        int | None, Query(ge=2, le=2000, description="about so many, spread over the whole job, instead of a page")
    ] = None,
) -> Response:
    """Return the job's metrics in order: a page of them, or with `points` a thinned history for a chart."""
    if points is not None:
        return await parts.pools.page(partial(_sampled, parts, id, points))
    return await parts.pools.page(partial(_page, parts, id, after, limit, "metrics"))


@router.get("/events", responses=documented(404), response_model=EventPage)
async def list_events(
    parts: PartsDep,
    caller: Viewer,
    id: JobId,
    after: After = -1,
    limit: Limit = 500,
    kind: Annotated[_Kind | None, Query(description="only events of this kind, such as `knobs`")] = None,
) -> Response:
    """Return all that happened, in order."""
    return await parts.pools.page(partial(_page, parts, id, after, limit, kind))


@router.get("/metrics/stream", responses={**STREAM, **documented(404)}, response_class=StreamingResponse)
async def stream_metrics(
    parts: PartsDep, caller: Viewer, id: JobId, after: After = -1, last_event_id: LastEventId = None
) -> Response:
    """Stream the job's metrics as server-sent events, from the first, or from `Last-Event-ID` on."""
    return await _stream(parts, caller, id, after, last_event_id, metrics_only=True)


@router.get("/events/stream", responses={**STREAM, **documented(404)}, response_class=StreamingResponse)
async def stream_events(
    parts: PartsDep, caller: Viewer, id: JobId, after: After = -1, last_event_id: LastEventId = None
) -> Response:
    """Stream everything the job tells as server-sent events.

    Numbers come without gaps or doubles, also across a restart of the service; `gap` says so where old metrics have
    been thinned out; `end` is the last, with the job's final state.
    """
    return await _stream(parts, caller, id, after, last_event_id, metrics_only=False)


@router.get(
    "/logs",
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **documented(404, 503)},
    response_class=PlainTextResponse,
)
async def show_log(
    parts: PartsDep,
    caller: Viewer,
    id: JobId,
    tail: Annotated[int, Query(ge=1, le=_MAX_TAIL, description="how many of the last lines")] = 1000,
    actor: Actor = None,
) -> PlainTextResponse:
    """Return the last log lines of all actors, each with its actor's name."""
    row = await parts.log_feeds.row(id)
    page = await parts.log_feeds.tail(row, _MAX_TAIL)
    lines = [redacted(line) for line in page.lines if is_from(line, actor)]
    return PlainTextResponse("".join(f"{line}\n" for line in lines[-tail:]))


@router.get("/logs/stream", responses={**STREAM, **documented(404, 503)}, response_class=StreamingResponse)
async def stream_log(
    parts: PartsDep,
    caller: Viewer,
    id: JobId,
    actor: Actor = None,
    tail: Annotated[
        int | None, Query(ge=1, le=_MAX_TAIL, description="begin with so many of the last lines, not with the first")
    ] = None,
    last_event_id: LastEventId = None,
) -> Response:
    """Stream log lines as server-sent events, from the first, from the last few, or from `Last-Event-ID` on."""
    row = await parts.log_feeds.row(id)
    if last_event_id is not None and last_event_id.strip().endswith(LOG_END):
        number_of(last_event_id.strip().removesuffix(LOG_END))
        if row.is_terminal:
            return Response(status_code=204)
        last_event_id = last_event_id.strip().removesuffix(LOG_END)
    if last_event_id is None and tail is not None:
        last = await parts.log_feeds.tail(row, _MAX_TAIL)
        return streaming(parts, caller, parts.log_feeds.read_tail(row, last, tail, actor))
    start = number_of(last_event_id) if last_event_id is not None else 0
    return streaming(parts, caller, parts.log_feeds.read(row, start, actor))


def _page(parts: Parts, id: str, after: int, limit: int, kind: str | None) -> Response:
    row = parts.store.jobs.get(id)
    rows = parts.store.events.after(id, after, limit, kind)
    if len(rows) == limit:
        return _paged(id, rows, rows[-1].sequence, has_more=True)
    return _paged(id, rows, max(after, row.last_sequence, rows[-1].sequence if rows else -1), has_more=False)


def _sampled(parts: Parts, id: str, points: int) -> Response:
    row = parts.store.jobs.get(id)
    return _paged(id, parts.store.events.sampled(id, points), row.last_sequence, has_more=False)


def _paged(id: str, rows: Sequence[EventRow], next_after: int, *, has_more: bool) -> Response:
    """Return a page as `EventPage` has it, put together here in a thread: its events are JSON already."""
    items = ",".join(as_json(id, row) for row in rows)
    page = f'{{"items":[{items}],"next_after":{next_after},"has_more":{json.dumps(has_more)}}}'
    return Response(page, media_type="application/json")


async def _stream(
    parts: Parts, caller: Caller, id: str, after: int, last_event_id: str | None, *, metrics_only: bool
) -> Response:
    row = await parts.log_feeds.row(id)
    if last_event_id is not None:
        after = number_of(last_event_id)
        if row.is_terminal and after >= row.last_sequence:
            return Response(status_code=204)
    return streaming(parts, caller, parts.feeds.read(row, after, metrics_only=metrics_only))


def streaming(parts: Parts, caller: Caller, content: AsyncGenerator[bytes, None]) -> StreamingResponse:
    """Return a stream, counted among those of the caller."""
    parts.streams.check(caller.token)
    counted = parts.streams.counted(caller.token, content)
    return StreamingResponse(counted, media_type="text/event-stream", headers=_STREAM_HEADERS)


def number_of(last_event_id: str) -> int:
    """Return the number a reader had last."""
    text = last_event_id.strip()
    if not text.removeprefix("-").isdecimal() or not text.isascii() or not -1 <= int(text) <= _MAX_SEQUENCE:
        raise BadRequest("header.Last-Event-ID", "send the id of the last event had, a whole number")
    return int(text)

"""What a job tells: metrics and events, as pages and as streams, and its log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from fastapi.responses import PlainTextResponse, StreamingResponse

from raysync.errors import RaysyncError
from raysync.ports import LogPage
from service.auth import Caller
from service.deps import Parts, PartsDep, Viewer
from service.errors import BadRequest, NotFound
from service.feed import HEARTBEAT_S, POLL_S
from service.problems import documented
from service.schemas import EventPage, JobId
from service.store import JobRow
from service.views import event_of

router = APIRouter(prefix="/jobs/{id}", tags=["telling"])

_MAX_SEQUENCE = 2**53
_MAX_TAIL = 10_000
After = Annotated[int, Query(ge=-1, le=_MAX_SEQUENCE, description="only events with larger numbers")]
Limit = Annotated[int, Query(ge=1, le=2000)]
LastEventId = Annotated[str | None, Header(max_length=20, description="the last event had: it goes on after that one")]
Actor = Annotated[
    str | None,
    Query(max_length=40, pattern=r"^[a-z]+(/\d+)?$", description="only lines of this actor, such as `worker/0`"),
]

_SSE = {
    "type": "object",
    "description": "one server-sent event; `data` is JSON",
    "properties": {name: {"type": "string"} for name in ("id", "event", "data")} | {"retry": {"type": "integer"}},
}
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"description": "Server-sent events, to the job's end.", "content": {"text/event-stream": {"schema": _SSE}}}
}
_STREAM_HEADERS = {"X-Accel-Buffering": "no"}


@router.get("/metrics", responses=documented(404))
def list_metrics(
    parts: PartsDep,
    caller: Viewer,
    id: JobId,
    after: After = -1,
    limit: Limit = 500,
    points: Annotated[
        int | None, Query(ge=2, le=2000, description="about so many, spread over the whole job, instead of a page")
    ] = None,
) -> EventPage:
    """Return the job's metrics in order: a page of them, or with `points` a thinned history for a chart."""
    parts.store.jobs.get(id)
    if points is not None:
        return EventPage(items=[event_of(id, row) for row in parts.store.events.sampled(id, points)], next_after=None)
    return _page(parts, id, after, limit, "metrics")


@router.get("/events", responses=documented(404))
def list_events(
    parts: PartsDep,
    caller: Viewer,
    id: JobId,
    after: After = -1,
    limit: Limit = 500,
    kind: Annotated[
        str | None, Query(max_length=20, pattern=r"^[a-z_]+$", description="only events of this kind, such as `knobs`")
    ] = None,
) -> EventPage:
    """Return all that happened, in order."""
    parts.store.jobs.get(id)
    return _page(parts, id, after, limit, kind)


@router.get("/metrics/stream", responses={**_STREAM, **documented(404)}, response_class=StreamingResponse)
async def stream_metrics(
    parts: PartsDep, caller: Viewer, id: JobId, after: After = -1, last_event_id: LastEventId = None
) -> StreamingResponse:
    """Stream the job's metrics as server-sent events, from the first, or from `Last-Event-ID` on."""
    return await _stream(parts, caller, id, after, last_event_id, metrics_only=True)


@router.get("/events/stream", responses={**_STREAM, **documented(404)}, response_class=StreamingResponse)
async def stream_events(
    parts: PartsDep, caller: Viewer, id: JobId, after: After = -1, last_event_id: LastEventId = None
) -> StreamingResponse:
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
    """Return the last lines of everybody's log, each with its actor's name."""
    row = await asyncio.to_thread(parts.store.jobs.get, id)
    page = await parts.runtime.log(row.path, None, _MAX_TAIL)
    lines = [line for line in page.lines if _is_from(line, actor)]
    return PlainTextResponse("".join(f"{line}\n" for line in lines[-tail:]))


@router.get("/logs/stream", responses={**_STREAM, **documented(404)}, response_class=StreamingResponse)
async def stream_log(
    parts: PartsDep, caller: Viewer, id: JobId, actor: Actor = None, last_event_id: LastEventId = None
) -> StreamingResponse:
    """Stream log lines as server-sent events, from the first, or from `Last-Event-ID` on."""
    row = await asyncio.to_thread(parts.store.jobs.get, id)
    start = _number(last_event_id) if last_event_id is not None else 0
    return _streaming(parts, caller, _log_lines(parts, row, start, actor))


def _page(parts: Parts, id: str, after: int, limit: int, kind: str | None) -> EventPage:
    rows = parts.store.events.after(id, after, limit, kind)
    return EventPage(
        items=[event_of(id, row) for row in rows], next_after=rows[-1].sequence if len(rows) == limit else None
    )


async def _stream(
    parts: Parts, caller: Caller, id: str, after: int, last_event_id: str | None, *, metrics_only: bool
) -> StreamingResponse:
    row = await asyncio.to_thread(parts.store.jobs.get, id)
    after = _number(last_event_id) if last_event_id is not None else after
    return _streaming(parts, caller, parts.feeds.read(row, after, metrics_only=metrics_only))


def _streaming(parts: Parts, caller: Caller, content: AsyncGenerator[bytes, None]) -> StreamingResponse:
    parts.streams.check(caller.token)
    counted = parts.streams.counted(caller.token, content)
    return StreamingResponse(counted, media_type="text/event-stream", headers=_STREAM_HEADERS)


def _number(last_event_id: str) -> int:
    text = last_event_id.strip()
    if not text.removeprefix("-").isdecimal() or not text.isascii() or not -1 <= int(text) <= _MAX_SEQUENCE:
        raise BadRequest("header.Last-Event-ID", "send the id of the last event had, a whole number")
    return int(text)


async def _log_lines(parts: Parts, row: JobRow, offset: int, actor: str | None) -> AsyncGenerator[bytes, None]:
    quiet_s = 0.0
    while True:
        try:
            ended = (await asyncio.to_thread(parts.store.jobs.get, row.id)).is_terminal  # before the last look
        except NotFound:
            return
        try:
            page = await parts.runtime.log(row.path, offset, 0)
        except RaysyncError:
            page = LogPage([], offset)  # it may come back; a job that has ended is not waited for
        if page.offset != offset:
            offset, quiet_s = page.offset, 0.0
            chunk = "".join(f"data: {json.dumps(line)}\n" for line in page.lines if _is_from(line, actor))
            yield f"id: {offset}\nevent: lines\n{chunk}\n".encode()
            continue
        if ended:
            yield f"id: {offset}\nevent: end\ndata: {{}}\n\n".encode()
            return
        await asyncio.sleep(POLL_S)
        quiet_s += POLL_S
        if quiet_s >= HEARTBEAT_S:
            quiet_s = 0.0
            yield b": ping\n\n"


def _is_from(line: str, actor: str | None) -> bool:
    return actor is None or f" {actor} | " in line[:80]

"""Jobs: submit, list, look, remove."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from raysync.value import Shape
from service.errors import WrongState
from service.http.deps import Admin, BodySchema, Operator, Parts, PartsDep, Viewer, loaded, read_body
from service.http.entering import entered
from service.http.problems import documented
from service.http.queries import Sort, job_filter
from service.http.schemas import JobCheck, JobCreate, JobId, JobPage, JobPublic
from service.http.views import checked, cursor_of, positions, read_cursor, shown, summary_of
from service.store.job_filter import JobFilter
from service.store.keys import Key

router = APIRouter(prefix="/jobs", tags=["jobs"])

_Key = Annotated[
    str,
    Field(min_length=1, max_length=200),
    Shape(r"[\x21-\x7e]+", "a key is made of ASCII letters, digits and signs, without spaces"),
]
IdempotencyKey = Annotated[_Key | None, Header()]
_Cursor = Annotated[
    str,
    Field(max_length=400),
    Shape(r"[A-Za-z0-9_-]+", "send `next_cursor` of the page before, or leave it out"),
]


@router.post(
    "",
    status_code=201,
    response_model=JobPublic,
    responses={
        200: {"model": JobCheck, "description": "It could be entered as it is; it was only looked at (`dry_run`)."},
        201: {
            "description": "It is entered; it starts as soon as it fits.",
            "headers": {
                "Location": {"schema": {"type": "string"}, "description": "where to look at it"},
                "Idempotency-Replayed": {
                    "schema": {"type": "string", "enum": ["true"]},
                    "description": "the key came before; this is the job it made then",
                },
            },
        },
        **documented(400, 404, 410, 413, 415),
    },
    openapi_extra=BodySchema(JobCreate),
)
async def submit_job(
    parts: PartsDep,
    caller: Operator,
    request: Request,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> JobPublic | JSONResponse:
    """Submit a job, or with `dry_run` only have it checked.

    With an `Idempotency-Key` the same request makes one job however often it is sent.
    A key belongs to the token it came with. A request sent again is answered with the job it made, whatever has changed
    since; for a day after that job was removed, with 410.
    """
    key = Key(caller.token, idempotency_key, _digest(await request.body())) if idempotency_key else None
    made = await asyncio.to_thread(parts.store.jobs.made_before, key, time.time()) if key is not None else None
    if made is not None:
        row, is_replay = made, True
    else:
        job = await read_body(request, JobCreate)
        fresh = await asyncio.to_thread(entered, parts.store, parts.settings, caller.name, job)
        if job.dry_run:
            return JSONResponse(checked(fresh).model_dump(mode="json"))
        row, is_replay = await asyncio.to_thread(parts.store.jobs.add, fresh, key)
        parts.manager.wake()
    response.headers["Location"] = f"/api/v1/jobs/{row.id}"
    if is_replay:
        response.headers["Idempotency-Replayed"] = "true"
    return await asyncio.to_thread(shown, parts.store, row)


@router.get("", responses=documented(), response_model=JobPage)
async def list_jobs(
    parts: PartsDep,
    caller: Viewer,
    which: Annotated[JobFilter, Depends(job_filter)],
    sort: Annotated[Sort, Query(description="by what; with a minus before it, falling")] = "-created",
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[_Cursor | None, Query(description="`next_cursor` of the page before")] = None,
) -> Response:
    """List jobs, newest first or as `sort` says; all filters that are given must hold."""
    after = read_cursor(cursor, sort) if cursor is not None else None
    return await parts.pools.page(lambda: _page(parts, limit, after, which, sort))


@router.get("/{id}", responses=documented(404))
def show_job(parts: PartsDep, caller: Viewer, id: JobId) -> JobPublic:
    """Look at a job: its state and why, its step, metrics, knobs, actors, and what really runs."""
    return shown(parts.store, parts.store.jobs.get(id))


@router.delete("/{id}", status_code=204, responses=documented(404, 409))
async def remove_job(parts: PartsDep, caller: Admin, id: JobId) -> None:
    """Strike a finished job and all it told from the books; its folder stays."""
    row = await asyncio.to_thread(parts.store.jobs.get, id)
    if not row.is_terminal:
        raise WrongState(id, row.state, "only a job that has ended can be removed; stop it first")
    await asyncio.to_thread(parts.store.jobs.remove, id, time.time())
    parts.manager.removed()
    parts.multiplex.hub.strike(id)


def _page(parts: Parts, limit: int, after: tuple[float | str, str] | None, which: JobFilter, sort: str) -> Response:
    """Return a page of jobs, put together here in a thread."""
    rows = parts.store.jobs.page(limit + 1, after, which, sort)
    more, places = len(rows) > limit, positions(parts.store, rows)
    items = [summary_of(row, places.get(row.id)) for row in rows[:limit]]
    page = JobPage(items=items, next_cursor=cursor_of(rows[limit - 1], sort) if more else None)
    return Response(page.model_dump_json(), media_type="application/json")


def _digest(raw: bytes) -> str:
    """Return the digest of a body as it was written, but for order and spaces: no default is part of it."""
    data = loaded(raw)
    return hashlib.sha256(raw if data is None else json.dumps(data, sort_keys=True).encode()).hexdigest()

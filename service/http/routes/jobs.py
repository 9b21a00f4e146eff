"""Jobs: submit, list, look, remove."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import time
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import Field

from raysync.control.states import JobState
from raysync.knobs import initial_knobs
from raysync.value import Shape
from service.errors import WrongState
from service.http.deps import Admin, BodySchema, Operator, Parts, PartsDep, Viewer, loaded, read_body
from service.http.problems import documented
from service.http.schemas import JobCreate, JobId, JobPage, JobPublic
from service.http.vetting import vetted
from service.http.views import cursor_of, positions, read_cursor, shown, summary_of
from service.jobs.packages import check_entrypoint
from service.store import JobRow
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
    responses={
        201: {
            "description": "It is entered; it starts as soon as it fits.",
            "headers": {"Location": {"schema": {"type": "string"}, "description": "where to look at it"}},
        },
        **documented(404, 410, 413, 415),
    },
    openapi_extra=BodySchema(JobCreate),
)
async def submit(
    parts: PartsDep,
    caller: Operator,
    request: Request,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> JobPublic:
    """Submit a job. With an `Idempotency-Key` the same request makes one job however often it is sent.

    A key belongs to the token it came with. A request sent again is answered with the job it made, whatever has changed
    since; for a day after that job was removed, with 410.
    """
    key = Key(caller.token, idempotency_key, _digest(await request.body())) if idempotency_key else None
    made = await asyncio.to_thread(parts.store.jobs.made_before, key, time.time()) if key is not None else None
    if made is not None:
        row, is_replay = made, True
    else:
        job = await read_body(request, JobCreate)
        entered = await asyncio.to_thread(_entered, parts, caller.name, job)
        row, is_replay = await asyncio.to_thread(parts.store.jobs.add, entered, key)
        parts.manager.wake()
    response.headers["Location"] = f"/api/v1/jobs/{row.id}"
    if is_replay:
        response.headers["Idempotency-Replayed"] = "true"
    return await asyncio.to_thread(shown, parts.store, row)


@router.get("", responses=documented(), response_model=JobPage)
async def list_jobs(
    parts: PartsDep,
    caller: Viewer,
    state: Annotated[JobState | None, Query(description="only jobs in this state")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[_Cursor | None, Query(description="`next_cursor` of the page before")] = None,
) -> Response:
    """List jobs, newest first."""
    before = read_cursor(cursor) if cursor is not None else None
    return await parts.pools.page(lambda: _page(parts, limit, before, state))


@router.get("/{id}", responses=documented(404))
def show(parts: PartsDep, caller: Viewer, id: JobId) -> JobPublic:
    """Look at a job: its state and why, its step, metrics, knobs, actors, and what really runs."""
    return shown(parts.store, parts.store.jobs.get(id))


@router.delete("/{id}", status_code=204, responses=documented(404, 409))
def remove(parts: PartsDep, caller: Admin, id: JobId) -> None:
    """Strike a finished job and all it told from the books; its folder stays."""
    row = parts.store.jobs.get(id)
    if not row.is_terminal:
        raise WrongState(id, row.state, "only a job that has ended can be removed; stop it first")
    parts.store.jobs.remove(id, time.time())
    parts.manager.removed()


def _page(parts: Parts, limit: int, before: tuple[float, str] | None, state: JobState | None) -> Response:
    """Return a page of jobs, put together here in a thread."""
    rows = parts.store.jobs.page(limit + 1, before, state.value if state else None)
    more, places = len(rows) > limit, positions(parts.store, rows)
    items = [summary_of(row, places.get(row.id)) for row in rows[:limit]]
    page = JobPage(items=items, next_cursor=cursor_of(rows[limit - 1]) if more else None)
    return Response(page.model_dump_json(), media_type="application/json")


def _entered(parts: Parts, owner: str, job: JobCreate) -> JobRow:
    """Return the row of a new job, having refused what cannot or may not run."""
    spec = vetted(job, parts.settings)
    package = parts.store.packages.use(job.package, time.time()) if job.package else None
    if job.spec.task.kind == "custom":
        modules = package.modules if package else ()
        check_entrypoint(job.spec.task.entrypoint, modules, parts.settings.allow_entrypoints)
    knobs = initial_knobs(spec)
    id = f"{spec.name}-{secrets.token_hex(4)}"
    return JobRow(
        id=id,
        name=spec.name,
        owner=owner,
        spec=spec.model_dump_json(),
        strategy=spec.strategy.kind,
        package=job.package,
        pip=job.pip,
        resume_from=_checkpoint_path(parts, job.resume_from) if job.resume_from else None,
        on_cluster_loss=job.on_cluster_loss,
        priority=job.priority,
        path=f"{parts.settings.storage_root.rstrip('/')}/{id}",
        created_s=time.time(),
        steps=spec.budget.steps,
        knobs=knobs.values,
    )


def _checkpoint_path(parts: Parts, resume_from: str) -> str:
    """Return where the checkpoint is that `JOB` or `JOB/CHECKPOINT` names."""
    id, _, name = resume_from.partition("/")
    path = parts.store.jobs.get(id).path
    return f"{path}/{name}" if name else path


def _digest(raw: bytes) -> str:
    """Return the digest of a body as it was written, but for order and spaces: no default is part of it."""
    data = loaded(raw)
    return hashlib.sha256(raw if data is None else json.dumps(data, sort_keys=True).encode()).hexdigest()

"""Jobs: submit, list, look, remove."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import time
from typing import Annotated

from fastapi import APIRouter, Header, Query, Response

from raysync.control.states import JobState
from raysync.knobs import initial_knobs
from raysync.spec import check_runnable
from service.deps import Admin, Operator, Parts, PartsDep, Viewer, body_schema, json_body
from service.errors import WrongState
from service.packages import check_entrypoint
from service.problems import documented
from service.schemas import JobCreate, JobId, JobPage, JobPublic
from service.store import JobRow
from service.store.jobs import Key
from service.views import cursor_of, public, read_cursor, summary_of

router = APIRouter(prefix="/jobs", tags=["jobs"])

IdempotencyKey = Annotated[str | None, Header(min_length=1, max_length=200, pattern=r"^[\x21-\x7e]+$")]


@router.post(
    "",
    status_code=201,
    responses={
        201: {
            "description": "It is entered; it starts as soon as it fits.",
            "headers": {"Location": {"schema": {"type": "string"}, "description": "where to look at it"}},
        },
        **documented(404, 413, 415),
    },
    openapi_extra=body_schema(JobCreate),
)
async def submit(
    parts: PartsDep,
    caller: Operator,
    response: Response,
    job: Annotated[JobCreate, json_body(JobCreate)],
    idempotency_key: IdempotencyKey = None,
) -> JobPublic:
    """Submit a job. With an `Idempotency-Key` the same request makes one job however often it is sent."""
    row = await asyncio.to_thread(_entered, parts, caller.name, job)
    key = Key(idempotency_key, _digest(job)) if idempotency_key else None
    row, is_replay = await asyncio.to_thread(parts.store.jobs.add, row, key)
    parts.manager.wake()
    response.headers["Location"] = f"/api/v1/jobs/{row.id}"
    if is_replay:
        response.headers["Idempotency-Replayed"] = "true"
    return public(row)


@router.get("", responses=documented())
def list_jobs(
    parts: PartsDep,
    caller: Viewer,
    state: Annotated[JobState | None, Query(description="only jobs in this state")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[
        str | None, Query(max_length=400, description="`next_cursor` of the page before", pattern=r"^[A-Za-z0-9_-]+$")
    ] = None,
) -> JobPage:
    """List jobs, newest first."""
    before = read_cursor(cursor) if cursor is not None else None
    rows = parts.store.jobs.page(limit + 1, before, state.value if state else None)
    more = len(rows) > limit
    return JobPage(
        items=[summary_of(row) for row in rows[:limit]], next_cursor=cursor_of(rows[limit - 1]) if more else None
    )


@router.get("/{id}", responses=documented(404))
def show(parts: PartsDep, caller: Viewer, id: JobId) -> JobPublic:
    """Look at a job: its state and why, its step, metrics, knobs, actors, and what really runs."""
    return public(parts.store.jobs.get(id))


@router.delete("/{id}", status_code=204, responses=documented(404, 409))
def remove(parts: PartsDep, caller: Admin, id: JobId) -> None:
    """Strike a finished job and all it told from the books; its folder stays."""
    row = parts.store.jobs.get(id)
    if not row.is_terminal:
        raise WrongState(id, row.state, "only a job that has ended can be removed; stop it first")
    parts.store.jobs.remove(id)


def _entered(parts: Parts, owner: str, job: JobCreate) -> JobRow:
    """Return the row of a new job, having refused what cannot or may not run."""
    check_runnable(job.spec)
    package = parts.store.packages.use(job.package, time.time()) if job.package else None
    if job.spec.task.kind == "custom":
        modules = package.modules if package else ()
        check_entrypoint(job.spec.task.entrypoint, modules, parts.settings.allow_entrypoints)
    knobs = initial_knobs(job.spec)
    id = f"{job.spec.name}-{secrets.token_hex(4)}"
    return JobRow(
        id=id,
        name=job.spec.name,
        owner=owner,
        spec=job.spec.model_dump_json(),
        strategy=job.spec.strategy.kind,
        package=job.package,
        pip=job.pip,
        resume_from=_checkpoint_path(parts, job.resume_from) if job.resume_from else None,
        on_cluster_loss=job.on_cluster_loss,
        path=f"{parts.settings.storage_root.rstrip('/')}/{id}",
        created_s=time.time(),
        steps=job.spec.budget.steps,
        knobs=knobs.values,
    )


def _checkpoint_path(parts: Parts, resume_from: str) -> str:
    """Return where the checkpoint is that `JOB` or `JOB/CHECKPOINT` names."""
    id, _, name = resume_from.partition("/")
    path = parts.store.jobs.get(id).path
    return f"{path}/{name}" if name else path


def _digest(job: JobCreate) -> str:
    return hashlib.sha256(json.dumps(job.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()

"""Studies: searches over the fields of a job, whose trials are jobs like any other."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from service.http.deps import BodySchema, Operator, Parts, PartsDep, Viewer, read_body
from service.http.entering import entered
from service.http.problems import documented
from service.http.routes.history import STREAM, After, LastEventId, number_of, streaming
from service.http.schemas import JobCreate, StudyCreate, StudyId, StudyPage, StudyPublic, TrialPublic
from service.http.views import study_of, study_summary_of, trial_of
from service.store.studies import StudyRow

router = APIRouter(prefix="/studies", tags=["studies"])


@router.post(
    "",
    status_code=201,
    responses={
        201: {
            "description": "It is entered; its first trials start as soon as they fit.",
            "headers": {"Location": {"schema": {"type": "string"}, "description": "where to look at it"}},
        },
        **documented(400, 404, 413, 415),
    },
    openapi_extra=BodySchema(StudyCreate),
)
async def submit_study(parts: PartsDep, caller: Operator, request: Request, response: Response) -> StudyPublic:
    """Start a study. Your own job is its first trial, the dense one its second."""
    asked = await read_body(request, StudyCreate)
    job = JobCreate(spec=asked.spec.job({}), package=asked.package, pip=asked.pip)
    await asyncio.to_thread(entered, parts.store, parts.settings, caller.name, job)  # refused now, not trial by trial
    row = StudyRow(
        id=f"{asked.spec.name}-{secrets.token_hex(4)}",
        name=asked.spec.name,
        owner=caller.name,
        spec=asked.spec.model_dump_json(),
        package=asked.package,
        pip=asked.pip,
        created_s=time.time(),
    )
    row = await parts.studies.submit(row, asked.spec)
    response.headers["Location"] = f"/api/v1/studies/{row.id}"
    return await asyncio.to_thread(_shown, parts, row)


@router.get("", responses=documented())
def list_studies(parts: PartsDep, caller: Viewer, limit: Annotated[int, Query(ge=1, le=200)] = 50) -> StudyPage:
    """List studies, newest first."""
    rows = parts.store.studies.latest(limit)
    counts = parts.store.studies.counts([row.id for row in rows])
    return StudyPage(items=[study_summary_of(row, counts.get(row.id, 0)) for row in rows])


@router.get("/{id}", responses=documented(404))
def show_study(parts: PartsDep, caller: Viewer, id: StudyId) -> StudyPublic:
    """Look at a study: how far it is, its front and its three picks, each with a job that can be submitted as it is."""
    return _shown(parts, parts.store.studies.get(id))


@router.get("/{id}/trials", responses=documented(404))
def list_trials(parts: PartsDep, caller: Viewer, id: StudyId) -> list[TrialPublic]:
    """Return the trials in their order: point, jobs, evaluations, and what came of each and why."""
    parts.store.studies.get(id)
    found = parts.store.studies.trials(id)
    return [trial_of(row) for row in sorted(found, key=lambda row: row.trial.number)]


@router.get("/{id}/trials/stream", responses={**STREAM, **documented(404)}, response_class=StreamingResponse)
async def stream_trials(
    parts: PartsDep, caller: Viewer, id: StudyId, after: After = -1, last_event_id: LastEventId = None
) -> Response:
    """Stream every change of a trial as server-sent events; `end` is the last, with the study's final state.

    A reader that was away gets each trial as it is now, not all it was in between.
    """
    row = await asyncio.to_thread(parts.store.studies.get, id)
    first = number_of(last_event_id) if last_event_id is not None else after
    if last_event_id is not None and row.is_over and first >= row.sequence:
        return Response(status_code=204)
    return streaming(parts, caller, parts.studies.follow(id, first, lambda row: trial_of(row).model_dump_json()))


@router.post("/{id}/stop", status_code=202, responses=documented(404))
async def stop_study(parts: PartsDep, caller: Operator, id: StudyId) -> StudyPublic:
    """End a study: no more trials, those that run are stopped, and what was found so far is its answer."""
    row = await parts.studies.stop(id, f"{caller.name} stopped it")
    return await asyncio.to_thread(_shown, parts, row)


def _shown(parts: Parts, row: StudyRow) -> StudyPublic:
    return study_of(row, [found.trial for found in parts.store.studies.trials(row.id)])

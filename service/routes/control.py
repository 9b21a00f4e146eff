"""Live control: knobs, workers, pause, resume, stop, checkpoints."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Header, Response

from raysync.errors import KnobConflict
from service.deps import Operator, PartsDep, Viewer, body_schema, json_body
from service.errors import BadRequest, PreconditionFailed
from service.problems import documented
from service.schemas import CheckpointPublic, JobId, JobPublic, KnobPatch, KnobsPublic, StopRequest, WorkersPut
from service.views import checkpoint_of, json_values, public

router = APIRouter(prefix="/jobs/{id}", tags=["control"])

_ETAG = {"ETag": {"schema": {"type": "string"}, "description": "the version, for If-Match"}}
IfMatch = Annotated[str | None, Header(max_length=40, description="a version as `GET` gave it in ETag, or *")]


@router.get("/knobs", responses={200: {"headers": _ETAG}, **documented(404)})
def show_knobs(parts: PartsDep, caller: Viewer, id: JobId, response: Response) -> KnobsPublic:
    """Return what may turn while the job runs, and where it stands."""
    row = parts.store.jobs.get(id)
    response.headers["ETag"] = f'"{row.knob_version}"'
    return KnobsPublic(
        job=id, version=row.knob_version, values=json_values(row.knobs), version_in_force=row.knob_version_in_force
    )


@router.patch(
    "/knobs",
    responses={200: {"headers": _ETAG}, **documented(404, 409, 412, 413, 415, 503)},
    openapi_extra=body_schema(KnobPatch),
)
async def turn_knobs(
    parts: PartsDep,
    caller: Operator,
    id: JobId,
    response: Response,
    patch: Annotated[KnobPatch, json_body(KnobPatch)],
    if_match: IfMatch = None,
) -> KnobsPublic:
    """Turn knobs: all workers have them from the next decision on.

    The answer names the version; the event log has the step at which it took effect. Send `before` back to undo it.
    """
    row = await asyncio.to_thread(parts.store.jobs.get, id)
    expected = _expected(patch, if_match)
    values = {name: float(value) if value == "Infinity" else value for name, value in patch.values.items()}
    try:
        knobs = await parts.manager.turn(id, values, expected, patch.dry_run)
    except KnobConflict as error:
        if if_match is None:
            raise
        raise PreconditionFailed(if_match, f'"{error.current}"') from None
    response.headers["ETag"] = f'"{knobs.version}"'
    before = {name: row.knobs[name] for name in patch.values if name in row.knobs}
    return KnobsPublic(
        job=id,
        version=knobs.version,
        values=json_values(knobs.values),
        version_in_force=row.knob_version_in_force,
        before=json_values(before),
        dry_run=patch.dry_run,
    )


@router.put(
    "/workers", status_code=202, responses=documented(404, 409, 413, 415, 503), openapi_extra=body_schema(WorkersPut)
)
async def scale(
    parts: PartsDep, caller: Operator, id: JobId, wanted: Annotated[WorkersPut, json_body(WorkersPut)]
) -> JobPublic:
    """Ask for another number of workers; those that stay are not restarted."""
    return await _turned(parts, id, {"workers": wanted.count})


@router.post("/pause", status_code=202, responses=documented(404, 409, 503))
async def pause(parts: PartsDep, caller: Operator, id: JobId) -> JobPublic:
    """Hold all workers at their next decision."""
    return await _turned(parts, id, {"pause": True})


@router.post("/resume", status_code=202, responses=documented(404, 409, 503))
async def resume(parts: PartsDep, caller: Operator, id: JobId) -> JobPublic:
    """Go on after a pause."""
    return await _turned(parts, id, {"pause": False})


@router.post(
    "/stop",
    status_code=202,
    responses=documented(404, 413, 415),
    openapi_extra=body_schema(StopRequest, required=False),
)
async def stop(
    parts: PartsDep, caller: Operator, id: JobId, how: Annotated[StopRequest, json_body(StopRequest, required=False)]
) -> JobPublic:
    """End a job with its next step and a checkpoint; by force if that takes longer than the bound.

    Stopping a job that has ended changes nothing.
    """
    return public(await parts.manager.stop(id, how.reason, how.force_after_s))


@router.get("/checkpoints", responses=documented(404, 503))
async def list_checkpoints(parts: PartsDep, caller: Viewer, id: JobId) -> list[CheckpointPublic]:
    """List the job's complete checkpoints, oldest first."""
    row = await asyncio.to_thread(parts.store.jobs.get, id)
    return [checkpoint_of(seen) for seen in await parts.runtime.checkpoints(row.path)]


@router.post("/checkpoints", status_code=202, responses=documented(404, 409, 503))
async def take_checkpoint(parts: PartsDep, caller: Operator, id: JobId) -> JobPublic:
    """Take a checkpoint at the next quiet moment."""
    await parts.manager.checkpoint(id)
    return public(await asyncio.to_thread(parts.store.jobs.get, id))


async def _turned(parts: PartsDep, id: str, changes: dict[str, Any]) -> JobPublic:
    await parts.manager.turn(id, changes, None, False)
    return public(await asyncio.to_thread(parts.store.jobs.get, id))


def _expected(patch: KnobPatch, if_match: str | None) -> int | None:
    """Return the version the caller has seen, from the body or the header."""
    if if_match is None or if_match.strip() == "*":
        return patch.expected_version
    text = if_match.strip().removeprefix("W/").strip('"')
    if not (text.isascii() and text.isdecimal()) or len(text) > 9:
        raise BadRequest("header.If-Match", 'send a version as GET .../knobs gave it in ETag, such as "3"')
    if patch.expected_version not in (None, int(text)):
        raise BadRequest("expected_version", "it says another version than If-Match; send one of them")
    return int(text)

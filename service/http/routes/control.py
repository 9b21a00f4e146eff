"""Live control: knobs, workers, pause, resume, stop, checkpoints."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Header, Response

from raysync.errors import KnobConflict
from raysync.knobs import Knobs
from service.errors import BadRequest, PreconditionFailed
from service.http.deps import BodySchema, Operator, PartsDep, Viewer, json_body
from service.http.etag import Tags, parse_tags
from service.http.problems import documented
from service.http.schemas import CheckpointPublic, JobId, JobPublic, KnobPatch, KnobsPublic, StopRequest, WorkersPut
from service.http.views import checkpoint_of, json_values, shown

router = APIRouter(prefix="/jobs/{id}", tags=["control"])

_ETAG = {"ETag": {"schema": {"type": "string"}, "description": "the version, for If-Match"}}
_UNCHANGED: dict[int | str, dict[str, Any]] = {304: {"description": "They are as If-None-Match says."}}
IfMatch = Annotated[str | None, Header(max_length=400, description="versions as `GET` gave them in ETag, or *")]
IfNoneMatch = Annotated[
    str | None, Header(max_length=400, description="versions had; 304 if one of them is the present")
]


@router.get("/knobs", responses={200: {"headers": _ETAG}, **_UNCHANGED, **documented(404)}, response_model=KnobsPublic)
def show_knobs(
    parts: PartsDep, caller: Viewer, id: JobId, response: Response, if_none_match: IfNoneMatch = None
) -> KnobsPublic | Response:
    """Return what may turn while the job runs, and where it stands."""
    row = parts.store.jobs.get(id)
    response.headers["ETag"] = f'"{row.knob_version}"'
    if if_none_match is not None and parse_tags(if_none_match, "If-None-Match").match_weakly(str(row.knob_version)):
        return Response(status_code=304, headers={"ETag": response.headers["ETag"]})
    return KnobsPublic(
        job=id, version=row.knob_version, values=json_values(row.knobs), version_in_force=row.knob_version_in_force
    )


@router.patch(
    "/knobs",
    responses={200: {"headers": _ETAG}, **documented(400, 404, 409, 412, 413, 415, 503)},
    openapi_extra=BodySchema(KnobPatch),
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
    values = {name: float(value) if value == "Infinity" else value for name, value in patch.values.items()}
    turn = partial(parts.manager.steering.turn, id, values, dry_run=patch.dry_run, by=caller.name)
    knobs = await _turned_if(turn, patch.expected_version, if_match, row.knob_version)
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
    "/workers",
    status_code=202,
    responses=documented(400, 404, 409, 413, 415, 503),
    openapi_extra=BodySchema(WorkersPut),
)
async def scale_job(
    parts: PartsDep, caller: Operator, id: JobId, wanted: Annotated[WorkersPut, json_body(WorkersPut)]
) -> JobPublic:
    """Ask for another number of workers; those that stay are not restarted."""
    return await _turned(parts, id, {"workers": wanted.count}, caller.name)


@router.post("/pause", status_code=202, responses=documented(404, 409, 503))
async def pause_job(parts: PartsDep, caller: Operator, id: JobId) -> JobPublic:
    """Hold all workers at their next decision."""
    return await _turned(parts, id, {"pause": True}, caller.name)


@router.post("/resume", status_code=202, responses=documented(404, 409, 503))
async def resume_job(parts: PartsDep, caller: Operator, id: JobId) -> JobPublic:
    """Go on after a pause."""
    return await _turned(parts, id, {"pause": False}, caller.name)


@router.post(
    "/stop",
    status_code=202,
    responses=documented(400, 404, 413, 415),
    openapi_extra=BodySchema(StopRequest, required=False),
)
async def stop_job(
    parts: PartsDep, caller: Operator, id: JobId, how: Annotated[StopRequest, json_body(StopRequest, required=False)]
) -> JobPublic:
    """End a job with its next step and a checkpoint; by force if that takes longer than the bound.

    Stopping a job that has ended changes nothing.
    """
    reason = f"{caller.name} stopped it" + (f": {how.reason}" if how.reason is not None else "")
    row = await parts.manager.steering.stop(id, reason, how.force_after_s)
    return await asyncio.to_thread(shown, parts.store, row)


@router.get("/checkpoints", responses=documented(404, 503))
async def list_checkpoints(parts: PartsDep, caller: Viewer, id: JobId) -> list[CheckpointPublic]:
    """List the job's complete checkpoints, oldest first."""
    row = await asyncio.to_thread(parts.store.jobs.get, id)
    return [checkpoint_of(seen) for seen in await parts.runtime.checkpoints(row.path)]


@router.post("/checkpoints", status_code=202, responses=documented(404, 409, 503))
async def take_checkpoint(parts: PartsDep, caller: Operator, id: JobId) -> JobPublic:
    """Take a checkpoint at the next quiet moment."""
    await parts.manager.steering.checkpoint(id)
    return await asyncio.to_thread(lambda: shown(parts.store, parts.store.jobs.get(id)))


async def _turned(parts: PartsDep, id: str, changes: dict[str, Any], by: str) -> JobPublic:
    await parts.manager.steering.turn(id, changes, None, dry_run=False, by=by)
    return await asyncio.to_thread(lambda: shown(parts.store, parts.store.jobs.get(id)))


async def _turned_if(turn: Any, expected: int | None, if_match: str | None, known: int) -> Knobs:
    """Turn knobs if they are at the version the body names, and at one of those the header names."""
    tags = parse_tags(if_match, "If-Match") if if_match is not None else Tags(True)
    if tags.is_any:
        return await turn(expected_version=expected)  # type: ignore[no-any-return]
    if expected is not None and not tags.match_strongly(str(expected)):
        raise BadRequest("expected_version", "it says another version than If-Match; send one of them")
    current = _candidate(tags, known) if expected is None else expected
    found = known
    while current is not None:
        try:
            return await turn(expected_version=current)  # type: ignore[no-any-return]
        except KnobConflict as error:
            found = error.current  # the books may be behind; it only goes up, so this ends
            is_newer = found > current and expected is None and tags.match_strongly(str(found))
            current = found if is_newer else None
    raise PreconditionFailed(str(if_match), f'"{found}"')


def _candidate(tags: Tags, known: int) -> int | None:
    """Return the version a change is tried against: the one in the books if it is named, else the newest named."""
    if tags.match_strongly(str(known)):
        return known
    named = [int(tag) for tag in tags.strong if tag.isascii() and tag.isdecimal() and len(tag) < 16]
    return max((number for number in named if str(number) in tags.strong), default=None)

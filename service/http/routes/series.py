"""Series for charts: several metrics of several jobs at once, down-sampled, and only what is new."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Response

from raysync.metrics import TOLD
from service.errors import BadRequest, DatabaseUnavailable
from service.http.chart_schemas import SeriesPage
from service.http.deps import Parts, PartsDep, Viewer
from service.http.problems import documented
from service.http.queries import Ids, Names, Numbers, parts_of
from service.store.points import Key
from service.store.series import UNIT, Found

router = APIRouter(prefix="/metrics", tags=["history"])

_UNITS = {metric.name: metric.unit for metric in TOLD}
_BEHIND = 4 * UNIT
"""A job with more events that are not reduced is one from before they were, or its service has just been busy."""


@router.get("/series", responses=documented(404), response_model=SeriesPage)
async def list_series(
    parts: PartsDep,
    caller: Viewer,
    jobs: Annotated[Ids, Query(description="jobs, with commas between them")],
    names: Annotated[Names, Query(description="metrics as `GET /components` lists them; `decision/sync` is 0 or 1")],
    by: Annotated[Literal["worker"] | None, Query(description="a series for each worker, of what workers tell")] = None,
    points: Annotated[int, Query(ge=4, le=4000, description="about so many of each series")] = 500,
    after: Annotated[
        Numbers | None, Query(description="only what came after these events: `next_after` of the answer before")
    ] = None,
) -> Response:
    """Return metrics as columns over steps, time and bytes sent.

    Of every piece of a long series the first, the smallest, the largest and the last value stay, so that no spike is
    lost; a short one is whole. With `after` only what is new is sent, to be put behind what was there.
    """
    ids = parts_of(jobs)
    starts = after_of(after, ids)
    read = partial(_page, parts, ids, starts, parts_of(names), points, by == "worker")
    return Response(await parts.pools.history(read), media_type="application/json")


def after_of(after: str | None, ids: Sequence[str], field: str = "query.after") -> list[int]:
    """Return the number of the last event had of each job; -1 where none is."""
    numbers = [int(part) for part in after.split(",")] if after is not None else [-1]
    if len(numbers) == 1:
        return numbers * len(ids)
    if len(numbers) != len(ids):
        raise BadRequest(
            field, f"there are {len(ids)} jobs and {len(numbers)} numbers; send one for each, or one for all"
        )
    return numbers


def _page(
    parts: Parts, ids: Sequence[str], starts: Sequence[int], names: Sequence[str], points: int, by_worker: bool
) -> bytes:
    found = [_job(parts, *job, names, points, by_worker) for job in zip(ids, starts, strict=True)]
    return msgspec.json.encode({"jobs": found, "next_after": [job["last"] for job in found]})


def _job(parts: Parts, id: str, after: int, names: Sequence[str], points: int, by_worker: bool) -> dict[str, Any]:
    row = parts.store.jobs.get(id)
    if row.last_sequence + 1 - row.rolled >= _BEHIND:
        _catch_up(parts, id)
    last = max(after, row.last_sequence)
    found = parts.store.series.read(id, after, last, names, points, by_worker=by_worker)
    order = {name: number for number, name in enumerate(names)}
    keys = sorted(found, key=lambda key: (order[key.name], -1 if key.worker is None else key.worker))
    return {
        "job": id,
        "state": row.state,
        "is_terminal": row.is_terminal,
        "steps": row.steps,
        "after": after,
        "last": last,
        "series": [_series(key, found[key]) for key in keys],
    }


def _catch_up(parts: Parts, id: str) -> None:
    """Reduce what has not been reduced; where the database cannot be written now, the events are read as they are."""
    try:
        while parts.store.series.roll(id):
            pass
    except DatabaseUnavailable:
        return


def _series(key: Key, found: Found) -> dict[str, Any]:
    sequence, step, time_s, sent, value = zip(*found.points, strict=True)
    base = key.name if key.name in _UNITS else key.name.rpartition("/")[0]
    return {
        "name": key.name,
        "worker": key.worker,
        "unit": _UNITS.get(base, ""),
        "count": found.total,
        "is_sampled": found.total > len(found.points),
        "min": min(value),
        "max": max(value),
        "sequence": sequence,
        "step": step,
        "time_s": time_s,
        "bytes": sent,
        "value": value,
    }

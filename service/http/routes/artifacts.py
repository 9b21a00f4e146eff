"""What jobs have made: checkpoints, the final model, and how a pipeline's schedule ran.

Whoever may look may list it; to take it along needs the operator's role, for a model is worth more than its curve.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path
from fastapi.responses import StreamingResponse

from raysync.address import Address
from raysync.errors import StorageError
from raysync.pipeline.base import Kind
from raysync.pipeline.trace import Traced, utilisation
from raysync.ports import FileSeen
from raysync.value import Shape
from service.errors import NotFound, RangeRefused
from service.http.chart_schemas import ArtifactPage, ArtifactPublic, SpanPublic, TracePublic, UtilisationPublic
from service.http.deps import Operator, Parts, PartsDep, Viewer
from service.http.problems import documented
from service.http.schemas import JobId

router = APIRouter(prefix="/jobs/{id}", tags=["artifacts"])

_PIECE = 1 << 20
_MAX_SPANS = 20_000
Folder = Annotated[
    str,
    Shape("(final|trace|checkpoint_[0-9]{6,9})", "a folder is final, trace or a checkpoint, as the list has it"),
    Path(description="such as final or checkpoint_000003"),
]
File = Annotated[
    str,
    Shape("[A-Za-z0-9][A-Za-z0-9._-]{0,199}", "a file is as the list has it, such as model.pt"),
    Path(description="such as model.pt"),
]
_BYTES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_FILE: dict[int | str, dict[str, Any]] = {
    200: {"description": "The whole file.", "content": _BYTES},
    206: {"description": "The part that Range asked for.", "content": _BYTES},
}


@router.get("/artifacts", responses=documented(404))
async def list_artifacts(parts: PartsDep, caller: Viewer, id: JobId) -> ArtifactPage:
    """List the files of a job that can be downloaded: the final model, complete checkpoints, traces."""
    return ArtifactPage(items=[_shown(seen) for seen in await _files(parts, id)])


@router.get(
    "/artifacts/{folder}/{file}", responses={**_FILE, **documented(404, 416, 502)}, response_class=StreamingResponse
)
async def download_artifact(
    parts: PartsDep,
    caller: Operator,
    id: JobId,
    folder: Folder,
    file: File,
    range: Annotated[str | None, Header(max_length=100, description="one part of it: `bytes=FIRST-LAST`")] = None,
) -> StreamingResponse:
    """Download a file of a job, as a stream; an operator may, a viewer may only list."""
    path = f"{folder}/{file}"
    seen = next((found for found in await _files(parts, id) if found.path == path), None)
    if seen is None:
        raise NotFound("artifact", path)
    first, end = part_of(range, seen.size_bytes)
    row = await asyncio.to_thread(parts.store.jobs.get, id)
    headers = {
        "Content-Length": str(end - first),
        "Content-Disposition": f'attachment; filename="{file}"',
        "Accept-Ranges": "bytes",
        **({"Content-Range": f"bytes {first}-{end - 1}/{seen.size_bytes}"} if range is not None else {}),
    }
    parts.streams.check(caller.token)
    content = parts.streams.counted(caller.token, _pieces(parts, row.path, path, first, end))
    return StreamingResponse(
        content, 206 if range is not None else 200, headers=headers, media_type="application/octet-stream"
    )


@router.get("/trace", responses=documented(404))
async def show_trace(parts: PartsDep, caller: Viewer, id: JobId) -> TracePublic:
    """Return what the stages of a pipeline did and when, as far as they have ended; nothing of other jobs."""
    row = await asyncio.to_thread(parts.store.jobs.get, id)
    spans = list[Traced]()
    for seen in await parts.runtime.files(row.path):
        if seen.kind == "trace":
            pieces = [piece async for piece in _pieces(parts, row.path, seen.path, 0, seen.size_bytes)]
            spans += await asyncio.to_thread(_spans, seen.path, b"".join(pieces))
    return await asyncio.to_thread(_traced, spans)


def part_of(text: str | None, size: int) -> tuple[int, int]:
    """Return the part of a file that a Range header asks for, as its first byte and the one behind its last."""
    if text is None:
        return 0, size
    found = re.fullmatch(r"\s*bytes\s*=\s*([0-9]{0,18})-([0-9]{0,18})\s*", text)
    if found is None or found[0].strip().endswith("=-"):
        raise RangeRefused(size)
    first = int(found[1]) if found[1] else max(0, size - int(found[2]))
    end = min(size, int(found[2]) + 1) if found[1] and found[2] else size
    if first >= end:
        raise RangeRefused(size)
    return first, end


async def _files(parts: Parts, id: str) -> list[FileSeen]:
    row = await asyncio.to_thread(parts.store.jobs.get, id)
    return await parts.runtime.files(row.path)


async def _pieces(parts: Parts, folder: str, name: str, first: int, end: int) -> AsyncGenerator[bytes, None]:
    while first < end:
        piece = await parts.runtime.piece(folder, name, first, min(_PIECE, end - first))
        if not piece:
            raise StorageError(name, "it has become shorter while it was read")
        first += len(piece)
        yield piece


def _shown(seen: FileSeen) -> ArtifactPublic:
    return ArtifactPublic.model_validate(seen, from_attributes=True)


def _spans(path: str, data: bytes) -> list[Traced]:
    name = path.rpartition("/")[2].removesuffix(".json")
    who = Address.parse(name.replace("-", "/"))
    return [Traced(who, Kind(kind), *rest) for kind, *rest in json.loads(data)]


def _traced(spans: Sequence[Traced]) -> TracePublic:
    first_s = min((span.start_s for span in spans), default=0.0)
    last = sorted(spans, key=lambda span: span.start_s)[-_MAX_SPANS:]
    shown = [
        SpanPublic(
            stage=span.who.stage,
            replica=span.who.index,
            kind=span.kind.value,
            step=span.step,
            microbatch=span.microbatch,
            start_s=span.start_s - first_s,
            end_s=span.end_s - first_s,
        )
        for span in last
    ]
    busy = [
        UtilisationPublic(stage=who.stage, replica=who.index, ratio=ratio)
        for who, ratio in sorted(utilisation(spans).items())
    ]
    return TracePublic(spans=shown, utilisation=busy)

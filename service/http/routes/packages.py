"""Packages: user code for jobs."""

from __future__ import annotations

import asyncio
import time

from fastapi import APIRouter, Request

from service.errors import UserCodeRefused, WrongMediaType
from service.http.deps import Operator, PartsDep, Viewer
from service.http.problems import documented
from service.http.schemas import PackageId, PackagePublic
from service.http.views import package_of
from service.jobs.packages import Limits, inspect, package_id
from service.store.packages import PackageRow

router = APIRouter(prefix="/packages", tags=["packages"])

_ZIP = "application/zip"


@router.post(
    "",
    status_code=201,
    responses=documented(413, 415),
    openapi_extra={
        "requestBody": {"required": True, "content": {_ZIP: {"schema": {"type": "string", "format": "binary"}}}}
    },
)
async def upload_package(parts: PartsDep, caller: Operator, request: Request) -> PackagePublic:
    """Send your code as a zip file and get an id to submit jobs with. It runs in workers only, never in the service."""
    if parts.settings.no_user_code:
        raise UserCodeRefused("package")
    kind = request.headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != _ZIP:
        raise WrongMediaType(kind, _ZIP)
    content = await request.body()
    settings = parts.settings
    modules = await asyncio.to_thread(inspect, content, Limits(settings.max_package_files, settings.max_unpacked_bytes))
    row = PackageRow(package_id(content), caller.name, time.time(), len(content), modules)
    return package_of(await asyncio.to_thread(parts.store.packages.add, row, content))


@router.get("/{id}", responses=documented(404))
def show_package(parts: PartsDep, caller: Viewer, id: PackageId) -> PackagePublic:
    """Look at a package: how large it is, and what can be named in an entrypoint."""
    return package_of(parts.store.packages.get(id))

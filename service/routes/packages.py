"""Packages: user code for jobs."""

from __future__ import annotations

import asyncio
import time

from fastapi import APIRouter, Request

from service.deps import Operator, PartsDep
from service.errors import WrongMediaType
from service.packages import Limits, inspect, package_id
from service.problems import documented
from service.schemas import PackagePublic
from service.store.packages import PackageRow
from service.views import package_of

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
async def upload(parts: PartsDep, caller: Operator, request: Request) -> PackagePublic:
    """Send your code as a zip file and get an id to submit jobs with. It runs in workers only, never in the service."""
    kind = request.headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != _ZIP:
        raise WrongMediaType(kind, _ZIP)
    content = await request.body()
    settings = parts.settings
    modules = await asyncio.to_thread(inspect, content, Limits(settings.max_package_files, settings.max_unpacked_bytes))
    row = PackageRow(package_id(content), caller.name, time.time(), len(content), modules)
    return package_of(await asyncio.to_thread(parts.store.packages.add, row, content))

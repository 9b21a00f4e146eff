"""The FastAPI application, made of parts it is handed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse
from pydantic.json_schema import models_json_schema

from raysync import __version__
from service.http import problems
from service.http.deps import BodySchema, Parts, Viewer
from service.http.event_schemas import documented_by_kind
from service.http.middleware import Envelope, Guard, Heads
from service.http.routes import ROOT_ROUTERS, ROUTERS, about

API = "/api/v1"
_THREADS = 32
"""For the manager and what steers; readers have their own, see `service.store.reading`."""

_DESCRIPTION = """Submit training jobs, watch them, and turn their synchronisation while they run.

Everything but health needs `Authorization: Bearer TOKEN`. Errors are `application/problem+json` with a stable `type`.
Streams are server-sent events that go on from `Last-Event-ID`.
"""


def create_app(parts: Parts) -> FastAPI:
    """Return the application."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS, "service"))
        await parts.manager.start()
        await parts.streams.start()
        await parts.studies.start()
        try:
            yield
        finally:
            await parts.studies.close()
            await parts.streams.close()
            await parts.feeds.close()
            await parts.multiplex.hub.close()
            await parts.log_feeds.close()
            await parts.manager.close()  # whatever the database does: the service and its Ray end
            parts.pools.close()

    app = FastAPI(
        title="raysync",
        version=__version__,
        description=_DESCRIPTION,
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.parts = parts
    for router in ROUTERS:
        app.include_router(router, prefix=API)
    for router in ROOT_ROUTERS:
        app.include_router(router)
    app.include_router(about.health, prefix=API, include_in_schema=False)
    document = lru_cache(maxsize=1)(lambda: _document(app))

    @app.get("/openapi.json", include_in_schema=False)
    def openapi(caller: Viewer) -> JSONResponse:
        return JSONResponse(document())

    app.openapi = document  # type: ignore[method-assign]
    problems.install(app)
    app.add_middleware(Heads)
    app.add_middleware(Guard, hosts=_hosts(parts), limit_bytes=partial(_limit_bytes, parts))
    app.add_middleware(Envelope, metrics=parts.metrics, is_tls=parts.settings.tls_cert is not None)
    return app


def _hosts(parts: Parts) -> frozenset[str]:
    local = {"localhost", "127.0.0.1", "::1"}
    return frozenset({*local, parts.settings.host.lower(), *(host.lower() for host in parts.settings.allow_hosts)})


def _limit_bytes(parts: Parts, path: str) -> int:
    settings = parts.settings
    return settings.max_package_bytes if path == f"{API}/packages" else settings.max_body_bytes


def _document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document with the bodies that are read by hand."""
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    extras = [getattr(route, "openapi_extra", None) for router in ROUTERS for route in router.routes]
    bodies = [extra.model for extra in extras if isinstance(extra, BodySchema)]
    pairs: Any = [(model, "validation") for model in (*dict.fromkeys(bodies), problems.Problem)]
    _, schemas = models_json_schema(pairs, ref_template="#/components/schemas/{model}")
    components = document.setdefault("components", {}).setdefault("schemas", {})
    components |= schemas["$defs"]
    components |= documented_by_kind(components["EventPublic"])
    for name in ("HTTPValidationError", "ValidationError"):
        components.pop(name, None)
    return document

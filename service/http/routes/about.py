"""About the service: what jobs may be made of, whether it is well, what Prometheus wants to know."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Response

from raysync import __version__
from service.http.catalogue import Catalogue, catalogue
from service.http.deps import PartsDep, Viewer
from service.http.problems import documented
from service.http.schemas import Health, MePublic, Readiness
from service.http.views import moment
from service.security.auth import Role

router = APIRouter(tags=["about"])
health = APIRouter(tags=["about"])
root = APIRouter(tags=["about"])

_CAN: dict[Literal["look", "steer", "remove"], Role] = {
    "look": Role.VIEWER,
    "steer": Role.OPERATOR,
    "remove": Role.ADMIN,
}


@router.get("/components", responses=documented())
def list_components(caller: Viewer) -> Catalogue:
    """Return every task, strategy, codec, optimizer and schedule, with its JSON Schema, and what may turn live."""
    return catalogue()


@router.get("/me", responses=documented())
def show_me(parts: PartsDep, caller: Viewer) -> MePublic:
    """Tell whose token this is, and what it is good for."""
    row = parts.store.tokens.find(caller.token)
    expires_s = row.expires_s if row is not None else None
    return MePublic(
        name=caller.name,
        role=caller.role.value,
        can=[can for can, role in _CAN.items() if caller.role.covers(role)],
        token=caller.token,
        expires_at=moment(expires_s) if expires_s is not None else None,
        version=__version__,
    )


@health.get("/healthz")
async def healthz() -> Health:
    """Answer as long as the service is alive; neither the database nor Ray is asked."""
    return Health(version=__version__)


@health.get("/readyz", responses={503: {"model": Readiness, "description": "Not yet, or not now."}})
async def readyz(parts: PartsDep, response: Response) -> Readiness:
    """Tell whether the database can be written and a Ray cluster answers."""
    problem = await parts.probe.problem()
    database = "ok" if problem is None else f"cannot be written now ({problem})"
    ray = "ok" if parts.runtime.cluster is not None else "no cluster answers; the service's log says why"
    is_ready = database == ray == "ok"
    response.status_code = 200 if is_ready else 503
    return Readiness(ready=is_ready, database=database, ray=ray, max_live_jobs=parts.manager.max_live_jobs)


@root.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **documented()},
)
async def show_prometheus(parts: PartsDep, caller: Viewer) -> Response:
    """Return metrics for Prometheus; give its scrape configuration a viewer's token."""
    return Response(await parts.pools.page(parts.metrics.render), media_type="text/plain; version=0.0.4; charset=utf-8")

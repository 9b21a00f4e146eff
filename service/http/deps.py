"""What routes ask for: the parts of the service, who is calling, and bodies that are what they should be."""

from __future__ import annotations

import json
from typing import Annotated, Any, NamedTuple, TypeVar

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ValidationError

from raysync.errors import FieldProblem
from raysync.spec import describe
from service.errors import BadRequest, BodyInvalid, NotJson, WrongMediaType
from service.http.prometheus import Metrics
from service.http.readiness import WriteProbe
from service.jobs.feed import Feeds
from service.jobs.log_feed import LogFeeds
from service.jobs.manager import Manager
from service.runtime.port import AsyncRuntime
from service.security.auth import Authenticator, Caller, Role, check_role
from service.security.quota import Quota
from service.settings import Settings
from service.store import Store
from service.store.reading import Pools
from service.streams.multiplex import Multiplex
from service.studies.keeper import Keeper

M = TypeVar("M", bound=BaseModel)

_MAX_PROBLEMS = 20
"""So many wrong fields are named; a hostile body has thousands."""


class Parts(NamedTuple):
    """The service, wired together."""

    settings: Settings
    store: Store
    runtime: AsyncRuntime
    feeds: Feeds
    manager: Manager
    authenticator: Authenticator
    metrics: Metrics
    streams: Quota
    pools: Pools
    log_feeds: LogFeeds
    probe: WriteProbe
    studies: Keeper
    multiplex: Multiplex


def _parts(request: Request) -> Parts:
    parts: Parts = request.app.state.parts
    return parts


PartsDep = Annotated[Parts, Depends(_parts)]

_bearer = HTTPBearer(auto_error=False, description="made with `raysync token create NAME`")


def _caller(
    request: Request,
    parts: PartsDep,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> Caller:
    address = request.client.host if request.client else ""
    caller = parts.authenticator.authenticate(credentials.credentials if credentials else None, address)
    request.scope["state"]["caller"] = caller.name
    return caller


def _needing(role: Role) -> Any:
    def checked(request: Request, caller: Annotated[Caller, Depends(_caller)]) -> Caller:
        check_role(caller, role)
        _check_query(request)
        return caller

    return checked


def _check_query(request: Request) -> None:
    """Raise for a query parameter the route does not have: a filter that is not known would filter nothing."""
    known = _query_names(getattr(request.scope.get("route"), "dependant", None))
    unknown = sorted({*request.query_params.keys()} - known)
    if unknown:
        there_are = f"known here: {', '.join(sorted(known))}" if known else "this route has none"
        raise BadRequest(f"query.{unknown[0][:80]}", f"there is no such parameter; {there_are}")


def _query_names(dependant: Any) -> set[str]:
    if dependant is None:
        return set()
    nested = [_query_names(part) for part in dependant.dependencies]
    return {field.alias for field in dependant.query_params}.union(*nested)


Viewer = Annotated[Caller, Depends(_needing(Role.VIEWER))]
Operator = Annotated[Caller, Depends(_needing(Role.OPERATOR))]
Admin = Annotated[Caller, Depends(_needing(Role.ADMIN))]


def json_body(model: type[M], *, required: bool = True) -> Any:
    """Return a dependency that reads a body as `model`, taking JSON at its word: "1" is no number, 1 no truth.

    Where it is not required, no body is a model of defaults.
    """

    async def read(request: Request) -> M:
        if not required and not request.headers.get("content-type", "") and not await request.body():
            return model()
        return await read_body(request, model)

    return Depends(read)


async def read_body(request: Request, model: type[M]) -> M:
    """Return a request's body as `model`, or raise what is wrong with it."""
    kind = request.headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != "application/json":
        raise WrongMediaType(kind, "application/json")
    raw = await request.body()
    try:
        return model.model_validate_json(raw, strict=True)
    except ValidationError as error:
        check_json(raw)
        data = loaded(raw)
        raise BodyInvalid(tuple(_described(data, found, model) for found in error.errors()[:_MAX_PROBLEMS])) from None


class BodySchema(dict[str, Any]):
    """What OpenAPI says of a body read by `json_body`; `service.server.app` adds the model's own schema."""

    def __init__(self, model: type[BaseModel], *, required: bool = True) -> None:
        schema = {"$ref": f"#/components/schemas/{model.__name__}"}
        super().__init__(requestBody={"required": required, "content": {"application/json": {"schema": schema}}})
        self.model = model


def check_json(raw: bytes) -> None:
    """Raise if a body is no JSON, saying where it stops being it."""
    try:
        json.loads(raw)
    except UnicodeDecodeError:
        raise NotJson("it is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise NotJson(f"{error.msg} in line {error.lineno}, column {error.colno}") from None
    except (ValueError, RecursionError):
        return  # too deep, or too long a number: what is wrong with it is told by its field


def loaded(raw: bytes) -> Any:
    """Return what JSON says, or None if it is none."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def _described(data: Any, found: Any, model: type[BaseModel]) -> FieldProblem:
    return describe(data, found, model) if found["loc"] else FieldProblem("(body)", None, found["msg"])

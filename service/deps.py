"""What routes ask for: the parts of the service, who is calling, and bodies that are what they should be."""

from __future__ import annotations

import json
from typing import Annotated, Any, NamedTuple, TypeVar

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ValidationError

from raysync.errors import Problem
from raysync.spec import describe
from service.auth import Authenticator, Caller, Role, check_role
from service.errors import BodyInvalid, WrongMediaType
from service.feed import Feeds
from service.manager import Manager
from service.prometheus import Metrics
from service.quota import Quota
from service.runtime import Runtime
from service.settings import Settings
from service.store import Store

M = TypeVar("M", bound=BaseModel)

_MAX_PROBLEMS = 20
"""So many wrong fields are named; a hostile body has thousands."""


class Parts(NamedTuple):
    """The service, wired together."""

    settings: Settings
    store: Store
    runtime: Runtime
    feeds: Feeds
    manager: Manager
    authenticator: Authenticator
    metrics: Metrics
    streams: Quota


def _parts(request: Request) -> Parts:
    parts: Parts = request.app.state.parts
    return parts


PartsDep = Annotated[Parts, Depends(_parts)]

_bearer = HTTPBearer(auto_error=False, description="made with `raysync token create`")


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
    def checked(caller: Annotated[Caller, Depends(_caller)]) -> Caller:
        check_role(caller, role)
        return caller

    return checked


Viewer = Annotated[Caller, Depends(_needing(Role.VIEWER))]
Operator = Annotated[Caller, Depends(_needing(Role.OPERATOR))]
Admin = Annotated[Caller, Depends(_needing(Role.ADMIN))]


def json_body(model: type[M], *, required: bool = True) -> Any:
    """Return a dependency that reads a body as `model`, taking JSON at its word: "1" is no number, 1 no truth.

    Where it is not required, no body is a model of defaults.
    """

    async def read(request: Request) -> M:
        kind = request.headers.get("content-type", "")
        if not required and not kind and not await request.body():
            return model()
        if kind.partition(";")[0].strip().lower() != "application/json":
            raise WrongMediaType(kind, "application/json")
        raw = await request.body()
        try:
            return model.model_validate_json(raw, strict=True)
        except ValidationError as error:
            data = _loaded(raw)
            raise BodyInvalid(
                tuple(_described(data, found, model) for found in error.errors()[:_MAX_PROBLEMS])
            ) from None

    return Depends(read)


def body_schema(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """Return what OpenAPI says of a body read by `json_body`; `service.app` adds the schema itself."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}}


def _loaded(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def _described(data: Any, found: Any, model: type[BaseModel]) -> Problem:
    return describe(data, found, model) if found["loc"] else Problem("(body)", None, found["msg"])

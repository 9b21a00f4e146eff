"""Errors as answers: one table from error class to status, one shape (RFC 9457), no traceback ever."""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from raysync import errors as core
from raysync.errors import RaysyncError
from service import errors
from service.security.redaction import redacted_values

MEDIA_TYPE = "application/problem+json"


class FieldError(BaseModel):
    """One field that is wrong, and what would be right."""

    field: str = Field(description="where, as a dotted path", examples=["spec.strategy.delta"])
    message: str = Field(description="what would be right", examples=["there is no such field; did you mean 'delta'?"])


class Problem(BaseModel):
    """What went wrong; `type` is stable."""

    type: str = Field(description="the kind of problem; stable", examples=["urn:raysync:knob-conflict"])
    title: str = Field(description="the kind of problem in words")
    status: int = Field(description="the HTTP status")
    detail: str = Field(description="what went wrong this time, and what to do about it")
    instance: str = Field(description="the path that was asked for")
    request_id: str = Field(description="the same as in the header X-Request-Id and in the service's log")
    errors: list[FieldError] = Field(default=[], description="the fields that are wrong, if fields are")


class Kind(NamedTuple):
    """How an error is answered."""

    status: int
    slug: str
    title: str
    retry_after_s: int | None = None


KINDS: dict[type[Exception], Kind] = {
    core.SpecError: Kind(422, "invalid-specification", "The job cannot be run as specified"),
    core.KnobError: Kind(422, "invalid-knob", "The knob cannot be turned so"),
    core.KnobConflict: Kind(409, "knob-conflict", "The knobs have been turned meanwhile"),
    core.NotRunning: Kind(409, "not-running", "The job does not train now", 1),
    core.StorageError: Kind(503, "storage-unusable", "The jobs' storage cannot be used", 5),
    core.CheckpointError: Kind(422, "invalid-checkpoint", "The checkpoint cannot be used"),
    core.RuntimeLost: Kind(503, "ray-unreachable", "The Ray cluster does not answer", 5),
    core.RuntimeFailed: Kind(502, "runtime-failed", "The runtime failed"),
    errors.DatabaseUnavailable: Kind(503, "database-unavailable", "The database does not answer", 2),
    errors.NotFound: Kind(404, "not-found", "There is no such thing"),
    errors.WrongState: Kind(409, "wrong-state", "The job is in another state"),
    errors.KeyReused: Kind(422, "idempotency-key-reused", "The key was used for another body"),
    errors.KeyOfRemoved: Kind(410, "job-removed", "The job this key made was removed"),
    errors.PreconditionFailed: Kind(412, "precondition-failed", "If-Match does not match"),
    errors.BadRequest: Kind(422, "invalid-request", "The request cannot be understood"),
    errors.BodyInvalid: Kind(422, "invalid-request", "The request cannot be understood"),
    errors.RangeRefused: Kind(416, "range-refused", "There is no such part"),
    errors.NotJson: Kind(400, "malformed-json", "The body is not JSON"),
    errors.PackageError: Kind(422, "invalid-package", "The package is refused"),
    errors.EntrypointRefused: Kind(422, "entrypoint-refused", "The code may not run here"),
    errors.TooLarge: Kind(413, "too-large", "The body is too large"),
    errors.WrongMediaType: Kind(415, "unsupported-media-type", "The body is of another kind"),
    errors.Unauthorized: Kind(401, "unauthorized", "A valid token is needed"),
    errors.Forbidden: Kind(403, "forbidden", "This is not allowed"),
    errors.UserCodeRefused: Kind(403, "user-code-refused", "No user code is run here"),
    errors.TooManyFailures: Kind(429, "too-many-failures", "Too many wrong tokens"),
    errors.TooManyStreams: Kind(429, "too-many-streams", "Too many streams are open", 5),
}
"""An error class that is not here is answered as its nearest base that is, or with 500."""


def install(app: FastAPI) -> None:
    """Answer every error the app knows as a problem; `service.http.middleware` answers the rest."""
    app.add_exception_handler(RaysyncError, _on_known)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)


def answer(scope: Any, error: RaysyncError) -> JSONResponse:
    """Return an error as a response."""
    kind = next((KINDS[base] for base in type(error).__mro__ if base in KINDS), None)
    if kind is None:
        return unforeseen(scope)
    headers = {}
    wait_s = error.wait_s if isinstance(error, errors.TooManyFailures) else kind.retry_after_s
    if wait_s is not None:
        headers["Retry-After"] = str(wait_s)
    if kind.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = 'Bearer realm="raysync"'
    return problem(scope, kind.status, kind.slug, kind.title, str(error), _fields(error), headers)


def problem(
    scope: Any,
    status: int,
    slug: str,
    title: str,
    detail: str,
    fields: Sequence[FieldError] = (),
    headers: dict[str, str] | None = None,
) -> JSONResponse:
    """Return a problem as a response."""
    found = Problem(
        type=f"urn:raysync:{slug}",
        title=title,
        status=status,
        detail=detail,
        instance=scope.get("path", ""),
        request_id=scope.get("state", {}).get("request_id", ""),
        errors=list(fields),
    )
    return JSONResponse(redacted_values(found.model_dump()), status, headers, media_type=MEDIA_TYPE)


def unforeseen(scope: Any) -> JSONResponse:
    """Return the answer to a request that failed in an unforeseen way: nothing of its inside."""
    detail = "the service's log has it, under this request id"
    return problem(scope, 500, "internal", "An unforeseen error", detail)


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI descriptions of the problems a route may answer with, those of all routes among them."""
    schema = {"$ref": "#/components/schemas/Problem"}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": {MEDIA_TYPE: {"schema": schema}}}
        for status in sorted({*statuses, 401, 403, 422, 429, 503})
    }


def _fields(error: RaysyncError) -> list[FieldError]:
    match error:
        case core.SpecError(problems=problems):
            return [FieldError(field=f"spec.{found.field}", message=found.remedy) for found in problems]
        case errors.BodyInvalid(problems=problems):
            return [FieldError(field=found.field, message=found.remedy) for found in problems]
        case core.KnobError(knob=knob, remedy=remedy):
            return [FieldError(field=f"values.{knob}", message=remedy)]
        case errors.BadRequest(field=field, remedy=remedy):
            return [FieldError(field=field, message=remedy)]
        case errors.UserCodeRefused(field=field):
            return [FieldError(field=field, message="this service runs no code of its users")]
        case errors.EntrypointRefused(remedy=remedy):
            return [FieldError(field="spec.task.entrypoint", message=remedy)]
        case _:
            return []


def _methods(request: Request) -> list[str]:
    """Return what may be done with a path; the framework knows of one route at a time."""
    paths: dict[str, dict[str, Any]] = request.app.openapi()["paths"]
    for template, methods in paths.items():
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), request.url.path):
            named = {method.upper() for method in methods}
            return sorted(named | ({"HEAD"} if "GET" in named else set()))
    return []


async def _on_known(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RaysyncError)
    return answer(request.scope, error)


async def _on_invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    fields = [FieldError(field=".".join(map(str, found["loc"])), message=str(found["msg"])) for found in error.errors()]
    detail = "; ".join(f"{found.field}: {found.message}" for found in fields)
    kind = KINDS[errors.BadRequest]
    return problem(request.scope, kind.status, kind.slug, kind.title, detail, fields)


async def _on_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    phrase = HTTPStatus(error.status_code).phrase
    slug = phrase.lower().replace(" ", "-")
    headers = dict(error.headers) if error.headers else {}
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(_methods(request))
    return problem(request.scope, error.status_code, slug, phrase, str(error.detail), headers=headers)

"""The service's routes as values: what to send, and what comes back. Both clients send them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import urlencode

from pydantic import TypeAdapter

from raysync.errors import RaysyncError
from raysync.spec import JobSpec, parse_spec
from service.catalogue import Catalogue
from service.schemas import (
    CheckpointPublic,
    EventPage,
    Health,
    JobPage,
    JobPublic,
    KnobsPublic,
    PackagePublic,
)

T = TypeVar("T")

_API = "/api/v1"


class Call(NamedTuple, Generic[T]):
    """One request."""

    method: str
    path: str
    kind: Any
    """The type of the answer; str for plain text, None for no answer."""
    params: Mapping[str, Any] = {}
    json: Any = None
    content: bytes | None = None
    headers: Mapping[str, str] = {}
    may_repeat: bool = True
    """Whether it does no harm to send it again when no answer came."""

    def read(self, status: int, body: bytes) -> T:
        """Return the answer, or raise the problem it tells of."""
        if status >= 400:
            raise ApiError.of(status, body)
        if self.kind is None or self.kind is str:
            return body.decode() if self.kind is str else None  # type: ignore[return-value]
        return TypeAdapter(self.kind).validate_json(body)  # type: ignore[no-any-return]


class ApiError(RaysyncError):
    """The service refused; `type` is stable, `detail` says what to do."""

    def __init__(self, status: int, type: str, detail: str, errors: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(status, type, detail, errors)
        self.status, self.type, self.detail, self.errors = status, type, detail, errors

    def __str__(self) -> str:
        fields = "".join(f"\n  {field}: {message}" for field, message in self.errors)
        return f"{self.detail if not fields else 'the service refused:'}{fields}"

    @classmethod
    def of(cls, status: int, body: bytes) -> ApiError:
        """Return the error an answer tells of, whatever it looks like."""
        try:
            found = json.loads(body)
            fields = tuple((str(entry["field"]), str(entry["message"])) for entry in found.get("errors", ()))
            return cls(status, str(found["type"]), str(found["detail"]), fields)
        except (ValueError, KeyError, TypeError, AttributeError):
            return cls(status, "about:blank", f"the service answered {status}: {body[:200].decode(errors='replace')}")


def submit(
    spec: JobSpec | dict[str, Any],
    key: str,
    package: str | None = None,
    pip: tuple[str, ...] = (),
    resume_from: str | None = None,
    on_cluster_loss: str = "fail",
) -> Call[JobPublic]:
    """Submit a job; the key makes sure it is one job however often it is sent."""
    body = {
        "spec": json.loads((spec if isinstance(spec, JobSpec) else parse_spec(spec)).model_dump_json()),
        "package": package,
        "pip": list(pip),
        "resume_from": resume_from,
        "on_cluster_loss": on_cluster_loss,
    }
    return Call("POST", f"{_API}/jobs", JobPublic, json=body, headers={"Idempotency-Key": key})


def jobs(state: str | None = None, limit: int = 50, cursor: str | None = None) -> Call[JobPage]:
    """List jobs."""
    params = {"limit": limit, **({"state": state} if state else {}), **({"cursor": cursor} if cursor else {})}
    return Call("GET", f"{_API}/jobs", JobPage, params)


def job(id: str) -> Call[JobPublic]:
    """Look at a job."""
    return Call("GET", f"{_API}/jobs/{id}", JobPublic)


def remove(id: str) -> Call[None]:
    """Remove a finished job."""
    return Call("DELETE", f"{_API}/jobs/{id}", None)


def stop(id: str, reason: str, force_after_s: float) -> Call[JobPublic]:
    """End a job."""
    body = {"reason": reason, "force_after_s": force_after_s}
    return Call("POST", f"{_API}/jobs/{id}/stop", JobPublic, json=body)


def pause(id: str) -> Call[JobPublic]:
    """Hold a job."""
    return Call("POST", f"{_API}/jobs/{id}/pause", JobPublic)


def resume(id: str) -> Call[JobPublic]:
    """Let a job go on."""
    return Call("POST", f"{_API}/jobs/{id}/resume", JobPublic)


def scale(id: str, count: int) -> Call[JobPublic]:
    """Ask for another number of workers."""
    return Call("PUT", f"{_API}/jobs/{id}/workers", JobPublic, json={"count": count})


def knobs(id: str) -> Call[KnobsPublic]:
    """Look at knobs."""
    return Call("GET", f"{_API}/jobs/{id}/knobs", KnobsPublic)


def turn(id: str, values: Mapping[str, Any], expected_version: int | None, dry_run: bool) -> Call[KnobsPublic]:
    """Turn knobs; not repeated by itself, since the first may have been heard."""
    sent = {name: "Infinity" if value == float("inf") else value for name, value in values.items()}
    body = {"values": sent, "expected_version": expected_version, "dry_run": dry_run}
    return Call("PATCH", f"{_API}/jobs/{id}/knobs", KnobsPublic, json=body, may_repeat=False)


def metrics(id: str, after: int, limit: int, points: int | None) -> Call[EventPage]:
    """Return metrics."""
    params = {"points": points} if points is not None else {"after": after, "limit": limit}
    return Call("GET", f"{_API}/jobs/{id}/metrics", EventPage, params)


def events(id: str, after: int, limit: int, kind: str | None) -> Call[EventPage]:
    """Return events."""
    return Call(
        "GET",
        f"{_API}/jobs/{id}/events",
        EventPage,
        {"after": after, "limit": limit, **({"kind": kind} if kind else {})},
    )


def log(id: str, tail: int, actor: str | None) -> Call[str]:
    """Return the last log lines."""
    return Call("GET", f"{_API}/jobs/{id}/logs", str, {"tail": tail, **({"actor": actor} if actor else {})})


def checkpoints(id: str) -> Call[list[CheckpointPublic]]:
    """List checkpoints."""
    return Call("GET", f"{_API}/jobs/{id}/checkpoints", list[CheckpointPublic])


def take_checkpoint(id: str) -> Call[JobPublic]:
    """Take a checkpoint."""
    return Call("POST", f"{_API}/jobs/{id}/checkpoints", JobPublic)


def upload(content: bytes) -> Call[PackagePublic]:
    """Send user code."""
    headers = {"Content-Type": "application/zip"}
    return Call("POST", f"{_API}/packages", PackagePublic, content=content, headers=headers)


def components() -> Call[Catalogue]:
    """Return what jobs may be made of."""
    return Call("GET", f"{_API}/components", Catalogue)


def health() -> Call[Health]:
    """Ask whether the service is alive."""
    return Call("GET", "/healthz", Health)


def stream_path(id: str, what: str) -> str:
    """Return the path of a stream: of `events`, `metrics` or `logs`."""
    return f"{_API}/jobs/{id}/{what}/stream"


def log_stream_path(id: str, actor: str | None) -> str:
    """Return the path of the stream of log lines, of one actor or of all."""
    return stream_path(id, "logs") + (f"?{urlencode({'actor': actor})}" if actor else "")

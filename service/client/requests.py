"""The service's routes as methods of its clients: each says what to send and what comes back, once for both.

To add one, write it below: `@sends` for an answer, `@streams` for server-sent events.
"""

from __future__ import annotations

import secrets
from typing import Any
from urllib.parse import urlencode

from raysync.spec import JobSpec, as_written, parse_spec
from service.client.call import Call
from service.client.method import sends, streams
from service.client.stream import PATIENCE_S, OnContact, Stream, events_of, lines_of
from service.http.catalogue import Catalogue
from service.http.schemas import (
    CheckpointPublic,
    EventPage,
    EventPublic,
    JobPage,
    JobPublic,
    KnobsPublic,
    PackagePublic,
)

_API = "/api/v1"


class Requests:
    """What `Client` and `AsyncClient` can ask."""

    @sends
    def submit(
        self,
        spec: JobSpec | dict[str, Any],
        *,
        key: str | None = None,
        package: str | None = None,
        pip: tuple[str, ...] = (),
        resume_from: str | None = None,
        on_cluster_loss: str = "fail",
        priority: int = 0,
    ) -> Call[JobPublic]:
        """Submit a job; the key, a new one unless it is given, makes sure it is one job however often it is sent.

        Only what was asked for is sent: a later raysync, with more fields and their defaults, sends the same.
        """
        options = {
            "package": package,
            "pip": list(pip),
            "resume_from": resume_from,
            "on_cluster_loss": on_cluster_loss,
            "priority": priority,
        }
        asked = {
            name: value for name, value in options.items() if value and (name, value) != ("on_cluster_loss", "fail")
        }
        body = {"spec": as_written(spec if isinstance(spec, JobSpec) else parse_spec(spec)), **asked}
        headers = {"Idempotency-Key": key or secrets.token_hex(16)}
        return Call("POST", f"{_API}/jobs", JobPublic, json=body, headers=headers)

    @sends
    def jobs(self, state: str | None = None, limit: int = 50, cursor: str | None = None) -> Call[JobPage]:
        """List jobs, newest first."""
        return Call("GET", f"{_API}/jobs", JobPage, _given(limit=limit, state=state or None, cursor=cursor or None))

    @sends
    def job(self, id: str) -> Call[JobPublic]:
        """Look at a job."""
        return Call("GET", f"{_API}/jobs/{id}", JobPublic)

    @sends
    def remove(self, id: str) -> Call[None]:
        """Remove a finished job from the books."""
        return Call("DELETE", f"{_API}/jobs/{id}", None)

    @sends
    def stop(self, id: str, reason: str | None = None, force_after_s: float = 60.0) -> Call[JobPublic]:
        """End a job in good order, by force after the bound."""
        body = _given(reason=reason or None, force_after_s=force_after_s)
        return Call("POST", f"{_API}/jobs/{id}/stop", JobPublic, json=body)

    @sends
    def pause(self, id: str) -> Call[JobPublic]:
        """Hold a job at its next decision."""
        return Call("POST", f"{_API}/jobs/{id}/pause", JobPublic)

    @sends
    def resume(self, id: str) -> Call[JobPublic]:
        """Let a paused job go on."""
        return Call("POST", f"{_API}/jobs/{id}/resume", JobPublic)

    @sends
    def scale(self, id: str, count: int) -> Call[JobPublic]:
        """Ask for another number of workers."""
        return Call("PUT", f"{_API}/jobs/{id}/workers", JobPublic, json={"count": count})

    @sends
    def knobs(self, id: str) -> Call[KnobsPublic]:
        """Look at a job's knobs."""
        return Call("GET", f"{_API}/jobs/{id}/knobs", KnobsPublic)

    @sends
    def turn(
        self, /, id: str, *, expected_version: int | None = None, dry_run: bool = False, **values: Any
    ) -> Call[KnobsPublic]:
        """Turn knobs; all workers have them from the next decision on.

        Not repeated by itself: the service may have heard the first.
        """
        sent = {name: "Infinity" if value == float("inf") else value for name, value in values.items()}
        body = {"values": sent, "expected_version": expected_version, "dry_run": dry_run}
        return Call("PATCH", f"{_API}/jobs/{id}/knobs", KnobsPublic, json=body, may_repeat=False)

    @sends
    def metrics(self, id: str, after: int = -1, limit: int = 500, points: int | None = None) -> Call[EventPage]:
        """Return a page of metrics, or about `points` of them spread over the whole job."""
        params = {"points": points} if points is not None else {"after": after, "limit": limit}
        return Call("GET", f"{_API}/jobs/{id}/metrics", EventPage, params)

    @sends
    def events(self, id: str, after: int = -1, limit: int = 500, kind: str | None = None) -> Call[EventPage]:
        """Return a page of events."""
        params = _given(after=after, limit=limit, kind=kind or None)
        return Call("GET", f"{_API}/jobs/{id}/events", EventPage, params)

    @sends
    def log(self, id: str, tail: int = 1000, actor: str | None = None) -> Call[str]:
        """Return the last log lines."""
        return Call("GET", f"{_API}/jobs/{id}/logs", str, _given(tail=tail, actor=actor or None))

    @sends
    def checkpoints(self, id: str) -> Call[list[CheckpointPublic]]:
        """List a job's checkpoints."""
        return Call("GET", f"{_API}/jobs/{id}/checkpoints", list[CheckpointPublic])

    @sends
    def take_checkpoint(self, id: str) -> Call[JobPublic]:
        """Take a checkpoint at the next quiet moment."""
        return Call("POST", f"{_API}/jobs/{id}/checkpoints", JobPublic)

    @sends
    def upload(self, content: bytes) -> Call[PackagePublic]:
        """Send user code, a zip file."""
        headers = {"Content-Type": "application/zip"}
        return Call("POST", f"{_API}/packages", PackagePublic, content=content, headers=headers)

    @sends
    def components(self) -> Call[Catalogue]:
        """Return what jobs may be made of."""
        return Call("GET", f"{_API}/components", Catalogue)

    @streams
    def follow(
        self,
        id: str,
        after: int = -1,
        *,
        metrics_only: bool = False,
        on_contact: OnContact | None = None,
        patience_s: float = PATIENCE_S,
    ) -> Stream[EventPublic]:
        """Yield a job's events from number `after + 1` to its end, each once, whatever happens to the connection.

        `on_contact` hears whether the service answers; `Unreachable` is raised after `patience_s` of silence.
        """
        path = stream_path(id, "metrics" if metrics_only else "events")
        return Stream(path, events_of, after, on_contact, patience_s)

    @streams
    def follow_log(
        self,
        id: str,
        actor: str | None = None,
        tail: int | None = None,
        *,
        on_contact: OnContact | None = None,
        patience_s: float = PATIENCE_S,
    ) -> Stream[str]:
        """Yield log lines as they come, to the job's end: all from the first on, or the last `tail` of them first;
        silence as with `follow`.
        """
        asked = urlencode(_given(actor=actor, tail=tail))
        path = stream_path(id, "logs") + (f"?{asked}" if asked else "")
        return Stream(path, lines_of, None, on_contact, patience_s)


def stream_path(id: str, what: str) -> str:
    """Return the path of a stream: of `events`, `metrics` or `logs`."""
    return f"{_API}/jobs/{id}/{what}/stream"


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}

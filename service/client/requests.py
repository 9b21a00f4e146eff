"""The service's routes as methods of its clients: each says what to send and what comes back, once for both.

To add one, write it below: `@sends` for an answer, `@streams` for server-sent events.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlencode

from raysync.spec import JobSpec, as_written, parse_spec
from raysync.study import StudySpec, parse_study
from service.client.call import Call
from service.client.method import sends, streams
from service.client.stream import PATIENCE_S, Message, OnContact, Stream, events_of, lines_of, messages_of, trials_of
from service.http.catalogue import Catalogue
from service.http.chart_schemas import ArtifactPage, SeriesPage, TracePublic
from service.http.schemas import (
    CheckpointPublic,
    EventPage,
    EventPublic,
    JobCheck,
    JobPage,
    JobPublic,
    KnobsPublic,
    MePublic,
    PackagePublic,
    StudyPage,
    StudyPublic,
    TrialPublic,
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
    def check(
        self,
        spec: JobSpec | dict[str, Any],
        *,
        package: str | None = None,
        pip: tuple[str, ...] = (),
        resume_from: str | None = None,
    ) -> Call[JobCheck]:
        """Have a job checked as if it were submitted, and enter none."""
        written = as_written(spec if isinstance(spec, JobSpec) else parse_spec(spec))
        body = _given(spec=written, package=package, pip=list(pip) or None, resume_from=resume_from, dry_run=True)
        return Call("POST", f"{_API}/jobs", JobCheck, json=body)

    @sends
    def jobs(
        self,
        state: str | Sequence[str] | None = None,
        limit: int = 50,
        cursor: str | None = None,
        *,
        live: bool | None = None,
        owner: str | None = None,
        name: str | None = None,
        label: str | Sequence[str] | None = None,
        ids: str | Sequence[str] | None = None,
        prefix: str | None = None,
        sort: str | None = None,
    ) -> Call[JobPage]:
        """List jobs, newest first or as `sort` says; all that is given must hold, a label is `key` or `key:value`."""
        asked = _given(
            limit=limit,
            state=_joined(state),
            cursor=cursor or None,
            live=None if live is None else str(live).lower(),
            owner=owner,
            name=name,
            label=_joined(label),
            ids=_joined(ids),
            prefix=prefix,
            sort=sort,
        )
        return Call("GET", f"{_API}/jobs", JobPage, asked)

    @sends
    def me(self) -> Call[MePublic]:
        """Tell whose token this is, and what it is good for."""
        return Call("GET", f"{_API}/me", MePublic)

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
    def series(
        self,
        jobs: str | Sequence[str],
        names: str | Sequence[str],
        *,
        by: str | None = None,
        points: int = 500,
        after: int | Sequence[int] | None = None,
    ) -> Call[SeriesPage]:
        """Return metrics of jobs as columns over steps, time and bytes, down-sampled; send `next_after` as `after` for
        what is new.
        """
        since = None if after is None else _joined([str(n) for n in ([after] if isinstance(after, int) else after)])
        asked = _given(jobs=_joined(jobs), names=_joined(names), by=by, points=points, after=since)
        return Call("GET", f"{_API}/metrics/series", SeriesPage, asked)

    @sends
    def artifacts(self, id: str) -> Call[ArtifactPage]:
        """List what a job has made: the final model, checkpoints, traces; `download` takes it along."""
        return Call("GET", f"{_API}/jobs/{id}/artifacts", ArtifactPage)

    @sends
    def trace(self, id: str) -> Call[TracePublic]:
        """Return what the stages of a pipeline did and when."""
        return Call("GET", f"{_API}/jobs/{id}/trace", TracePublic)

    @sends
    def package(self, id: str) -> Call[PackagePublic]:
        """Look at a package."""
        return Call("GET", f"{_API}/packages/{id}", PackagePublic)

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
    def follow_all(
        self,
        *,
        jobs: str | Sequence[str] | None = None,
        studies: str | Sequence[str] | None = None,
        labels: str | Sequence[str] | None = None,
        kinds: str | Sequence[str] | None = None,
        summaries: bool = True,
        after: int | Sequence[int] | None = None,
        on_contact: OnContact | None = None,
        patience_s: float = PATIENCE_S,
    ) -> Stream[Message]:
        """Yield what all jobs and studies tell, or those that are named, each thing once: messages of the kinds
        `events`, `jobs`, `removed`, `studies`, `trials` and `gap`; to the end of those that are named. Silence as with
        `follow`.
        """
        since = None if after is None else _joined([str(n) for n in ([after] if isinstance(after, int) else after)])
        asked = _given(
            jobs=_joined(jobs),
            studies=_joined(studies),
            labels=_joined(labels),
            kinds=_joined(kinds),
            summaries=None if summaries else "false",
            after=since,
        )
        path = f"{_API}/stream" + (f"?{urlencode(asked)}" if asked else "")
        return Stream(path, messages_of, None, on_contact, patience_s)

    @sends
    def submit_study(
        self, spec: StudySpec | dict[str, Any], *, package: str | None = None, pip: tuple[str, ...] = ()
    ) -> Call[StudyPublic]:
        """Start a study. Not repeated by itself: the service may have heard the first."""
        study = spec if isinstance(spec, StudySpec) else parse_study(spec)
        body = _given(spec=as_written(study), package=package, pip=list(pip) or None)
        return Call("POST", f"{_API}/studies", StudyPublic, json=body, may_repeat=False)

    @sends
    def studies(self, limit: int = 50) -> Call[StudyPage]:
        """List studies, newest first."""
        return Call("GET", f"{_API}/studies", StudyPage, _given(limit=limit))

    @sends
    def study(self, id: str) -> Call[StudyPublic]:
        """Look at a study: how far it is, its front and its picks."""
        return Call("GET", f"{_API}/studies/{id}", StudyPublic)

    @sends
    def trials(self, id: str) -> Call[list[TrialPublic]]:
        """Return a study's trials in their order."""
        return Call("GET", f"{_API}/studies/{id}/trials", list[TrialPublic])

    @sends
    def stop_study(self, id: str) -> Call[StudyPublic]:
        """End a study with what it has found so far."""
        return Call("POST", f"{_API}/studies/{id}/stop", StudyPublic)

    @streams
    def follow_trials(
        self,
        id: str,
        after: int = -1,
        *,
        on_contact: OnContact | None = None,
        patience_s: float = PATIENCE_S,
    ) -> Stream[dict[str, Any]]:
        """Yield every change of a trial, from number `after + 1` to the end of the study; silence as with `follow`."""
        path = f"{_API}/studies/{id}/trials/stream"
        return Stream(path, trials_of, after, on_contact, patience_s)

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


def _joined(given: str | Sequence[str] | None) -> str | None:
    """Return what is given, one thing or several, as a list in one parameter."""
    return given if given is None or isinstance(given, str) else ",".join(given)


def artifact_path(id: str, path: str) -> str:
    """Return where a file of a job is."""
    return f"{_API}/jobs/{id}/artifacts/{quote(path)}"


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}

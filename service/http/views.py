"""From rows of the books to what goes over HTTP."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from pydantic import ValidationError

from raysync.advice import advice
from raysync.ports import CheckpointSeen
from raysync.reason import shortened
from raysync.spec import JobSpec
from raysync.study import StudySpec, Trial, outcome
from raysync.study.outcome import answer_of
from service.errors import BadRequest
from service.http.actors import actors_of
from service.http.schemas import (
    ActorPublic,
    CheckpointPublic,
    JobCheck,
    JobPublic,
    JobSummary,
    PackagePublic,
    StudyPublic,
    StudySummary,
    TrialPublic,
)
from service.security.redaction import redacted, redacted_values
from service.store import JobRow, Store
from service.store.job_filter import NEWEST, value_of
from service.store.packages import PackageRow
from service.store.studies import StudyRow, TrialRow


def summary_of(row: JobRow, queue_position: int | None) -> JobSummary:
    """Return a job for a list."""
    return JobSummary(**_common(row), queue_position=queue_position)


def public(row: JobRow, queue_position: int | None, actors: Sequence[ActorPublic] = ()) -> JobPublic:
    """Return a job with all that is known of it."""
    short = redacted(shortened(row.reason))
    whole = redacted(row.reason.strip())
    return JobPublic(
        **{**_common(row), "reason": short},
        traceback=whole if whole != short else None,
        actors=list(actors),
        queue_position=queue_position,
        spec=redacted_values(json.loads(row.spec)),
        knobs=json_values(row.knobs),
        on_cluster_loss=row.on_cluster_loss,
        package=row.package,
        pip=list(row.pip),
        resume_from=redacted(row.resume_from) if row.resume_from is not None else None,
        launches=row.launches,
        runs=redacted_values(row.runs),
        path=redacted(row.path),
        last_sequence=row.last_sequence,
        advice=_advice(row.spec),
    )


def _advice(spec: str) -> list[str]:
    """Return what there is to say about a job; nothing about one that another version of the service took in."""
    try:
        return list(advice(JobSpec.model_validate_json(spec)))
    except ValidationError:
        return []


def _common(row: JobRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "name": row.name,
        "owner": row.owner,
        "state": row.state,
        "is_terminal": row.is_terminal,
        "reason": redacted(row.reason),
        "strategy": row.strategy,
        "created_at": moment(row.created_s),
        "started_at": moment(row.started_s) if row.started_s is not None else None,
        "ended_at": moment(row.ended_s) if row.ended_s is not None else None,
        "step": row.step,
        "steps": row.steps,
        "workers": row.workers,
        "metrics": row.metrics,
        "knob_version": row.knob_version,
        "priority": row.priority,
        "labels": redacted_values(row.labels),
    }


def shown(store: Store, row: JobRow) -> JobPublic:
    """Return a job with all that is known of it, and its place in the line if it waits in it."""
    return public(row, positions(store, [row]).get(row.id), actors_of(row, store.events.starts(row.id)))


def checked(row: JobRow) -> JobCheck:
    """Return a job that was only looked at."""
    spec = redacted_values(json.loads(row.spec))
    return JobCheck(spec=spec, knobs=json_values(row.knobs), labels=row.labels, advice=_advice(row.spec))


def positions(store: Store, rows: Sequence[JobRow]) -> dict[str, int]:
    """Return the places in the line of those jobs that wait in it."""
    return store.queue.positions([row.id for row in rows if row.state == "PENDING" and row.admitted_s is None])


def json_values(values: dict[str, Any]) -> dict[str, Any]:
    """Return knobs as JSON can carry them: infinity is a word."""
    return {name: "Infinity" if value == float("inf") else value for name, value in values.items()}


def checkpoint_of(seen: CheckpointSeen) -> CheckpointPublic:
    """Return a checkpoint."""
    found = CheckpointPublic.model_validate(seen, from_attributes=True)
    return found.model_copy(update={"path": redacted(found.path)})


def package_of(row: PackageRow) -> PackagePublic:
    """Return a package."""
    return PackagePublic(
        id=row.id,
        size_bytes=row.size_bytes,
        modules=list(row.modules),
        created_at=moment(row.created_s),
        owner=row.owner,
    )


def study_summary_of(row: StudyRow, begun: int) -> StudySummary:
    """Return a study for a list."""
    return StudySummary(**_common_of_study(row, begun))


def study_of(row: StudyRow, trials: Sequence[Trial]) -> StudyPublic:
    """Return a study with what its trials come to so far."""
    spec = StudySpec.model_validate_json(row.spec)
    told = sorted(trials, key=lambda trial: trial.number)
    answer = answer_of(spec, outcome(spec, told), told)
    return StudyPublic(
        **_common_of_study(row, len(told)),
        spec=redacted_values(json.loads(row.spec)),
        package=row.package,
        pip=list(row.pip),
        over=sum(trial.state.is_over for trial in told),
        sentence=redacted(answer["sentence"]),
        front=answer["front"],
        picks=redacted_values(answer["picks"]),
        hypervolume=answer["hypervolume"],
        last_sequence=row.sequence,
    )


def trial_of(row: TrialRow) -> TrialPublic:
    """Return a trial."""
    values = msgspec.to_builtins(row.trial)
    hidden = {name: redacted_values(values[name]) for name in ("point", "turned")}
    return TrialPublic(sequence=row.sequence, **{**values, **hidden, "reason": redacted(values["reason"])})


def _common_of_study(row: StudyRow, begun: int) -> dict[str, Any]:
    return {
        "id": row.id,
        "name": row.name,
        "owner": row.owner,
        "state": row.state,
        "is_terminal": row.is_over,
        "reason": redacted(row.reason),
        "created_at": moment(row.created_s),
        "ended_at": moment(row.ended_s) if row.ended_s is not None else None,
        "begun": begun,
        "trials": json.loads(row.spec)["trials"],
    }


def moment(time_s: float) -> datetime:
    """Return a time as RFC 3339 has it."""
    return datetime.fromtimestamp(time_s, UTC)


def cursor_of(row: JobRow, sort: str) -> str:
    """Return the cursor of the page after a job."""
    found = [sort, value_of(row, sort), row.id]
    return base64.urlsafe_b64encode(json.dumps(found).encode()).decode().rstrip("=")


def read_cursor(cursor: str, sort: str = NEWEST) -> tuple[float | str, str]:
    """Return what a cursor stands for, or raise."""
    try:
        made_for, value, id = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        if made_for != sort:
            raise ValueError(made_for)
        if not isinstance(id, str) or not re.fullmatch(r"[a-z0-9._-]+", id):
            raise ValueError(id)
        if sort.removeprefix("-") in ("name", "state"):
            if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9._-]+", value):
                raise ValueError(value)
            return value, id
        if not math.isfinite(value):
            raise ValueError(value)
        return float(value), id
    except (OverflowError, ValueError, TypeError, binascii.Error, UnicodeDecodeError):
        raise BadRequest(
            "cursor", "send `next_cursor` of the page before, with the same `sort`, or leave it out"
        ) from None

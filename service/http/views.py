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

from pydantic import ValidationError

from raysync.advice import advice
from raysync.ports import CheckpointSeen
from raysync.spec import JobSpec
from service.errors import BadRequest
from service.http.schemas import CheckpointPublic, JobPublic, JobSummary, PackagePublic
from service.security.redaction import redacted, redacted_values
from service.store import JobRow, Store
from service.store.packages import PackageRow


def summary_of(row: JobRow, queue_position: int | None) -> JobSummary:
    """Return a job for a list."""
    return JobSummary(**_common(row), queue_position=queue_position)


def public(row: JobRow, queue_position: int | None) -> JobPublic:
    """Return a job with all that is known of it."""
    return JobPublic(
        **_common(row),
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
    }


def shown(store: Store, row: JobRow) -> JobPublic:
    """Return a job with all that is known of it, and its place in the line if it waits in it."""
    return public(row, positions(store, [row]).get(row.id))


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
        id=row.id, size_bytes=row.size_bytes, modules=list(row.modules), created_at=moment(row.created_s)
    )


def moment(time_s: float) -> datetime:
    """Return a time as RFC 3339 has it."""
    return datetime.fromtimestamp(time_s, UTC)


def cursor_of(row: JobRow) -> str:
    """Return the cursor of the page after a job."""
    return base64.urlsafe_b64encode(json.dumps([row.created_s, row.id]).encode()).decode().rstrip("=")


def read_cursor(cursor: str) -> tuple[float, str]:
    """Return what a cursor stands for, or raise."""
    try:
        created_s, id = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        if not isinstance(id, str) or not re.fullmatch(r"[a-z0-9._-]+", id):
            raise ValueError(id)
        if not math.isfinite(created_s):
            raise ValueError(created_s)
        return float(created_s), id
    except (OverflowError, ValueError, TypeError, binascii.Error, UnicodeDecodeError):
        raise BadRequest("cursor", "send `next_cursor` of the page before, or leave it out") from None

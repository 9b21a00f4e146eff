"""From rows of the books to what goes over HTTP."""

from __future__ import annotations

import base64
import binascii
import json
import re
from datetime import UTC, datetime
from typing import Any

from raysync.ports import CheckpointSeen
from service.errors import BadRequest
from service.schemas import CheckpointPublic, EventPublic, JobPublic, JobSummary, PackagePublic
from service.store import EventRow, JobRow
from service.store.packages import PackageRow


def summary_of(row: JobRow) -> JobSummary:
    """Return a job for a list."""
    return JobSummary(**_common(row))


def public(row: JobRow) -> JobPublic:
    """Return a job with all that is known of it."""
    return JobPublic(
        **_common(row),
        spec=json.loads(row.spec),
        knobs=json_values(row.knobs),
        on_cluster_loss=row.on_cluster_loss,
        package=row.package,
        resume_from=row.resume_from,
        launches=row.launches,
        runs=row.runs,
        path=row.path,
        last_sequence=row.last_sequence,
    )


def _common(row: JobRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "name": row.name,
        "owner": row.owner,
        "state": row.state,
        "is_terminal": row.is_terminal,
        "reason": row.reason,
        "strategy": row.strategy,
        "created_at": moment(row.created_s),
        "started_at": moment(row.started_s) if row.started_s is not None else None,
        "ended_at": moment(row.ended_s) if row.ended_s is not None else None,
        "step": row.step,
        "steps": row.steps,
        "workers": row.workers,
        "metrics": row.metrics,
        "knob_version": row.knob_version,
    }


def json_values(values: dict[str, Any]) -> dict[str, Any]:
    """Return knobs as JSON can carry them: infinity is a word."""
    return {name: "Infinity" if value == float("inf") else value for name, value in values.items()}


def event_of(job: str, row: EventRow) -> EventPublic:
    """Return an event."""
    return EventPublic(job=job, **{**row._asdict(), "data": json.loads(row.data)})


def checkpoint_of(seen: CheckpointSeen) -> CheckpointPublic:
    """Return a checkpoint."""
    return CheckpointPublic.model_validate(seen, from_attributes=True)


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
        return float(created_s), id
    except (ValueError, TypeError, binascii.Error, UnicodeDecodeError):
        raise BadRequest("cursor", "send `next_cursor` of the page before, or leave it out") from None

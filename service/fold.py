"""From what a job told to what its row says: a pure function over records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raysync.control.states import JobState
from raysync.ports import Record
from service.store import JobRow


def fold(row: JobRow, records: Sequence[Record], now_s: float) -> dict[str, Any]:
    """Return the columns of a job that change with these records, which follow all it knows of."""
    changes: dict[str, Any] = {}
    metrics, knobs, step = dict(row.metrics), dict(row.knobs), row.step
    for record in records:
        step = max(step, record.step)
        match record.kind:
            case "metrics":
                metrics |= {name: value for name, value in record.data.items() if _is_number(value)}
            case "knobs":
                changes["knob_version_in_force"] = record.knob_version
                if record.knob_version >= row.knob_version:
                    knobs |= record.data["after"]
                    changes |= {"knob_version": record.knob_version, "knobs": knobs}
            case "view":
                changes["workers"] = len(record.data["members"])
            case "reason":
                changes["reason"] = record.data["reason"]
            case "state":
                changes |= _entered(row, changes, record.data, now_s)
    if step != row.step:
        changes["step"] = step
    if metrics != row.metrics:
        changes["metrics"] = metrics
    return changes


def _entered(row: JobRow, changes: dict[str, Any], data: dict[str, Any], now_s: float) -> dict[str, Any]:
    state, at_s = JobState(data["state"]), data.get("at_s", now_s)
    entered: dict[str, Any] = {"state": state.value, "reason": data["reason"]}
    if state is JobState.RUNNING and row.started_s is None and "started_s" not in changes:
        entered["started_s"] = at_s
    if state.is_terminal:
        entered |= {"ended_s": at_s, "workers": 0}
    return entered


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))

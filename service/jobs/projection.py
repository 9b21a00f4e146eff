"""From what a job told to what its row says: pure functions over events and a status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from raysync.control.states import JobState
from raysync.events import Event, KnobChange, Metrics, NewReason, StateChange, ViewChange
from raysync.ports import ActorStatus, JobStatus
from service.store import JobRow
from service.store.totals import TOTALS


def projected(row: JobRow, events: Sequence[Event], now_s: float) -> dict[str, Any]:
    """Return the columns of a job that change with these events, which follow all it knows of."""
    changes: dict[str, Any] = {}
    metrics, totals, knobs, step = dict(row.metrics), dict(row.totals), dict(row.knobs), row.step
    knob_version = row.knob_version
    for event in events:
        step = max(step, event.step)
        match event.body:
            case Metrics(values):
                totals |= _grown(totals, metrics, values)
                metrics |= values
            case KnobChange(after=after):
                in_force = changes.get("knob_version_in_force", row.knob_version_in_force)
                changes["knob_version_in_force"] = max(in_force, event.knob_version)
                if event.knob_version >= knob_version:
                    knob_version = event.knob_version
                    knobs |= after
                    changes |= {"knob_version": knob_version, "knobs": knobs}
            case ViewChange(members=members):
                changes["workers"] = len(members)
            case NewReason(reason=reason):
                changes["reason"] = reason
            case StateChange() as entered:
                changes |= _entered(row, changes, entered, now_s)
    if step != row.step:
        changes["step"] = step
    if metrics != row.metrics:
        changes["metrics"] = metrics
    if totals != row.totals:
        changes["totals"] = totals
    return changes


def runs_of(status: JobStatus) -> dict[str, Any]:
    """Return what the books say really runs; of a job whose actors are gone, what they said last."""
    actors = {name: _actor(found) for name, found in status.actors.items()}
    return {**msgspec.to_builtins(status.runs), "actors": actors or status.runs.actors}


def _actor(status: ActorStatus) -> dict[str, Any]:
    where = {"node": status.node, "node_id": status.node_id, "pid": status.pid, "life": status.life.value}
    return {**where, **status.facts}


def _grown(totals: Mapping[str, float], before: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, float]:
    """Return the totals that change: by what was told above what was told before, never by less than nothing."""
    return {
        name: totals.get(name, before.get(name) or 0.0) + max(0.0, told[name] - (before.get(name) or 0.0))
        for name in TOTALS
        if told.get(name) is not None
    }


def _entered(row: JobRow, changes: dict[str, Any], told: StateChange, now_s: float) -> dict[str, Any]:
    state, at_s = told.state, now_s if told.at_s is None else told.at_s
    entered: dict[str, Any] = {"state": state.value, "reason": told.reason}
    if state is JobState.RUNNING and row.started_s is None and "started_s" not in changes:
        entered["started_s"] = at_s
    if state.is_terminal:
        entered |= {"ended_s": at_s, "workers": 0}
    return entered

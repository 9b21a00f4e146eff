"""A job as the books have it, and the columns it is kept in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, Select, select, update

from raysync.control.states import JobState
from raysync.reason import shortened
from service.errors import NotFound
from service.store.tables import jobs

_JSON = ("pip", "metrics", "knobs", "runs", "totals", "labels")
_HEAVY = ("spec", "runs", "reason")
_LISTED = [column for column in jobs.c if column.name not in (*_HEAVY, "headline")] + [jobs.c.headline.label("reason")]
"""What listings are made of: a reason there is one line, for a traceback may have megabytes."""
_VERSIONED = {"knob_version": ("knob_shift", "knobs"), "knob_version_in_force": ()}
"""Columns that only grow, and those that belong to them."""
_KNOB_COLUMNS = {*_VERSIONED, *(name for others in _VERSIONED.values() for name in others)}
LIVE = tuple(state.value for state in JobState if not state.is_terminal)


def is_of_study(row: JobRow) -> bool:
    """Return whether a job is a study's trial, by its labels."""
    return '"study":' in row.spec and "study" in json.loads(row.spec).get("labels", {})


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the books have it."""

    id: str
    name: str
    owner: str
    state: str = "PENDING"
    reason: str = "it has just been submitted"
    """In listings one line of it."""
    spec: str = ""
    """As JSON; empty in listings."""
    strategy: str
    package: str | None = None
    pip: tuple[str, ...] = ()
    resume_from: str | None = None
    on_cluster_loss: str = "fail"
    path: str
    created_s: float
    started_s: float | None = None
    ended_s: float | None = None
    step: int = 0
    steps: int
    workers: int = 0
    metrics: dict[str, float | None] = {}
    """The last value of each."""
    knobs: dict[str, Any]
    """As they are, or will be at the next decision."""
    knob_version: int = 0
    knob_version_in_force: int = 0
    knob_shift: int = 0
    """What is added to the runtime's versions: it grows when the runtime goes back to an earlier one."""
    runs: dict[str, Any] = {}
    """What really runs; empty in listings."""
    launches: int = 0
    launched_on: str | None = None
    launched_address: str | None = None
    """Where the cluster it was last started on is looked for."""
    stop: str | None = None
    stop_force_after_s: float | None = None
    last_sequence: int = -1
    num_events: int = 0
    thinned_below: int = 0
    """Of events with smaller numbers only those that last, and one in `thinned_to_every` of the others, are kept."""
    thinned_to_every: int = 1
    source_sequence: int = -1
    """The number in the job's journal of the last event taken from there."""
    incarnation: int = 0
    """Which life of its controller told it."""
    totals: dict[str, float] = {}
    """What only grows, over all lives of the job."""
    labels: dict[str, str] = {}
    """Words to find it by."""
    rolled: int = 0
    """Events below this number are reduced for charts."""
    priority: int = 0
    admitted_s: float | None = None
    """When its turn to be started came."""
    removed_s: float | None = None
    """When it was removed; what it told goes piece by piece."""
    lease_owner: str | None = None

    @property
    def is_terminal(self) -> bool:
        """Whether it has ended."""
        return JobState(self.state).is_terminal


def get_job(connection: Connection, id: str, locked: bool = False) -> JobRow:
    """Return a job, or raise `NotFound`; locked, no other transaction changes it during this one."""
    query = select(jobs).where(jobs.c.id == id, jobs.c.removed_s.is_(None))
    row = connection.execute(query.with_for_update() if locked else query).one_or_none()
    if row is None:
        raise NotFound("job", id)
    return unpacked(row)


def locked(connection: Connection, id: str) -> JobRow | None:
    """Return a job that no other transaction changes during this one; None if it is not there, or removed."""
    query = select(jobs).where(jobs.c.id == id, jobs.c.removed_s.is_(None)).with_for_update()
    row = connection.execute(query).one_or_none()
    return None if row is None else unpacked(row)


def light_rows(connection: Connection, *which: ColumnElement[bool]) -> list[JobRow]:
    """Return jobs without what is heavy."""
    return [unpacked(row) for row in connection.execute(light(*which))]


def light(*which: ColumnElement[bool]) -> Select[Any]:
    """Return the query for jobs without what is heavy."""
    return select(*_LISTED).where(*which)


def change(connection: Connection, id: str, changes: Mapping[str, Any]) -> None:
    """Change columns of a job that has not ended, inside a transaction; versions of its knobs never go back."""
    live = (jobs.c.id == id, jobs.c.state.in_(LIVE))
    for version, others in _VERSIONED.items():
        if version in changes:
            together = {name: changes[name] for name in (version, *others) if name in changes}
            is_later = jobs.c[version] <= changes[version]
            connection.execute(update(jobs).where(*live, is_later).values(packed(together)))
    rest = {name: value for name, value in changes.items() if name not in _KNOB_COLUMNS}
    if rest:  # last: it may end the job
        connection.execute(update(jobs).where(*live).values(packed(rest)))


def packed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return columns as the database keeps them."""
    columns = {name: json.dumps(value) if name in _JSON else _clean(value) for name, value in values.items()}
    return columns | ({"headline": shortened(columns["reason"])} if "reason" in columns else {})


def _clean(value: Any) -> Any:
    """Return text without the one character a database may refuse; a traceback may hold it."""
    return value.replace("\x00", "") if isinstance(value, str) else value


def unpacked(row: Row[Any]) -> JobRow:
    """Return a job from its columns."""
    values = {str(name): json.loads(value) if name in _JSON else value for name, value in row._mapping.items()}
    values.pop("headline", None)
    return msgspec.convert(values, JobRow)

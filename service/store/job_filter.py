"""Which jobs a listing has, in which order, and where its next page begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, and_, false, func, or_, select

from service.store.job_row import LIVE, JobRow
from service.store.tables import jobs, labels

SORTS: Mapping[str, Any] = {
    "created": jobs.c.created_s,
    "name": jobs.c.name,
    "state": jobs.c.state,
    "step": jobs.c.step,
    "ended": func.coalesce(jobs.c.ended_s, 0.0),
}
"""What jobs can be sorted by; with a minus before it the other way round."""
NEWEST = "-created"


class JobFilter(NamedTuple):
    """Which jobs; all that is given must hold."""

    states: Sequence[str] = ()
    is_live: bool | None = None
    owner: str | None = None
    name: str | None = None
    """What the name or the id contains."""
    labels: Sequence[tuple[str, str | None]] = ()
    """Keys, each with the value it must have or None for any."""
    ids: Sequence[str] | None = None
    prefix: str | None = None
    """What the id begins with, or the random end of it."""

    def conditions(self) -> list[ColumnElement[bool]]:
        """Return it as conditions on the table of jobs."""
        found: list[ColumnElement[bool]] = [jobs.c.removed_s.is_(None)]
        if self.states:
            found.append(jobs.c.state.in_(self.states))
        if self.is_live is not None:
            found.append(jobs.c.state.in_(LIVE) if self.is_live else jobs.c.state.not_in(LIVE))
        if self.owner is not None:
            found.append(jobs.c.owner == self.owner)
        if self.name is not None:
            inside = f"%{_literal(self.name.lower())}%"
            found.append(or_(func.lower(jobs.c.name).like(inside, escape="\\"), jobs.c.id.like(inside, escape="\\")))
        for key, value in self.labels:
            named = select(labels.c.job).where(labels.c.key == key)
            found.append(jobs.c.id.in_(named if value is None else named.where(labels.c.value == value)))
        if self.ids is not None:
            found.append(jobs.c.id.in_(self.ids) if self.ids else false())
        if self.prefix is not None:
            start = _literal(self.prefix)
            patterns = (f"{start}%", f"%-{start}%")
            found.append(or_(*(jobs.c.id.like(pattern, escape="\\") for pattern in patterns)))
        return found

    def holds(self, row: JobRow) -> bool:
        """Return whether a job is among them, but for what its name and id are like."""
        return (
            (not self.states or row.state in self.states)
            and (self.is_live is None or self.is_live is not row.is_terminal)
            and (self.owner is None or row.owner == self.owner)
            and (self.ids is None or row.id in self.ids)
            and all(key in row.labels and value in (None, row.labels[key]) for key, value in self.labels)
        )


EVERY = JobFilter()


def sorted_by(query: Select[Any], sort: str, after: tuple[Any, str] | None) -> Select[Any]:
    """Return a query in an order, from behind the job that has this value and this id."""
    column, is_falling = SORTS[sort.removeprefix("-")], sort.startswith("-")
    order = (column.desc(), jobs.c.id.desc()) if is_falling else (column, jobs.c.id)
    if after is not None:
        value, id = after
        beyond = column < value if is_falling else column > value
        same = and_(column == value, jobs.c.id < id if is_falling else jobs.c.id > id)
        bound = column <= value if is_falling else column >= value
        query = query.where(bound, or_(beyond, same))
    return query.order_by(*order)


def value_of(row: JobRow, sort: str) -> Any:
    """Return what a job is sorted by."""
    values = {"created": row.created_s, "name": row.name, "state": row.state, "step": row.step}
    return values.get(sort.removeprefix("-"), row.ended_s or 0.0)


def _literal(text: str) -> str:
    """Return a text as LIKE takes it at its word."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")

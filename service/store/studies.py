"""Studies on the books: what was asked for, how it goes, and every trial as it is now."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, func, insert, select, update

from raysync.study.trial import Trial
from service.errors import NotFound
from service.store.database import Database
from service.store.tables import studies, trials

OVER = ("SUCCEEDED", "STOPPED", "FAILED")


class StudyRow(msgspec.Struct, frozen=True, kw_only=True):
    """One study."""

    id: str
    name: str
    owner: str
    state: str = "PENDING"
    reason: str = "its process is being started"
    spec: str
    """As JSON."""
    package: str | None = None
    pip: tuple[str, ...] = ()
    created_s: float
    ended_s: float | None = None
    stop: str | None = None
    """Why it is to end."""
    sequence: int = -1
    """The number of the last change of a trial."""

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.state in OVER


class TrialRow(msgspec.Struct, frozen=True):
    """A trial as it was last told."""

    sequence: int
    trial: Trial


class Studies:
    """Reads and writes studies."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, row: StudyRow) -> StudyRow:
        """Enter a study."""
        values = {**msgspec.structs.asdict(row), "pip": json.dumps(row.pip)}
        with self._database.write(durable=True) as connection:
            connection.execute(insert(studies).values(values))
        return row

    def get(self, id: str) -> StudyRow:
        """Return a study, or raise `NotFound`."""
        with self._database.read() as connection:
            return _found(connection, id)

    def latest(self, limit: int) -> list[StudyRow]:
        """Return the newest studies, newest first."""
        query = select(studies).order_by(studies.c.created_s.desc(), studies.c.id.desc()).limit(limit)
        with self._database.read() as connection:
            return [_row(found) for found in connection.execute(query)]

    def unfinished(self) -> list[StudyRow]:
        """Return the studies that have not ended, oldest first."""
        query = select(studies).where(studies.c.state.not_in(OVER)).order_by(studies.c.created_s, studies.c.id)
        with self._database.read() as connection:
            return [_row(found) for found in connection.execute(query)]

    def change(self, id: str, changes: Mapping[str, Any]) -> StudyRow:
        """Change columns of a study that has not ended; return it as it is then."""
        with self._database.write(durable=True) as connection:
            connection.execute(
                update(studies).where(studies.c.id == id, studies.c.state.not_in(OVER)).values(dict(changes))
            )
            return _found(connection, id)

    def put_trial(self, id: str, trial: Trial) -> None:
        """Keep a trial as it is now, under the next number."""
        body = msgspec.json.encode(trial).decode()
        here = (trials.c.study == id, trials.c.number == trial.number)
        with self._database.write() as connection:
            if connection.execute(select(trials.c.body).where(*here)).scalar_one_or_none() == body:
                return
            connection.execute(update(studies).where(studies.c.id == id).values(sequence=studies.c.sequence + 1))
            sequence = connection.execute(select(studies.c.sequence).where(studies.c.id == id)).scalar_one()
            entered = self._database.insert(trials).values(study=id, number=trial.number, sequence=sequence, body=body)
            changed = {"sequence": sequence, "body": body}
            connection.execute(entered.on_conflict_do_update(index_elements=["study", "number"], set_=changed))

    def trials(self, id: str, after: int = -1) -> list[TrialRow]:
        """Return trials that have changed after a number, in the order of their last change."""
        query = select(trials.c.sequence, trials.c.body).where(trials.c.study == id, trials.c.sequence > after)
        with self._database.read() as connection:
            found = connection.execute(query.order_by(trials.c.sequence)).all()
        return [TrialRow(row.sequence, msgspec.json.decode(row.body, type=Trial)) for row in found]

    def counts(self, ids: list[str]) -> dict[str, int]:
        """Return how many trials each study has begun."""
        query = select(trials.c.study, func.count()).where(trials.c.study.in_(ids)).group_by(trials.c.study)
        with self._database.read() as connection:
            return {row[0]: row[1] for row in connection.execute(query)}


def _found(connection: Connection, id: str) -> StudyRow:
    row = connection.execute(select(studies).where(studies.c.id == id)).one_or_none()
    if row is None:
        raise NotFound("study", id)
    return _row(row)


def _row(found: Row[Any]) -> StudyRow:
    values = dict(found._mapping)
    return StudyRow(**{**values, "pip": tuple(json.loads(values["pip"]))})

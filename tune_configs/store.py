"""A study's folder, and the database in it: the one place that knows what was tried and what came of it.

Optuna keeps what its sampler knows in the same file. Ray Tune's own files are only its scratch paper: a study that was
killed goes on from here.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import secrets
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from raysync.errors import FieldProblem, SpecError
from raysync.study import State, StudySpec, Trial, parse_study

_BUSY_S = 30.0


class StudyStore:
    """One study on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = folder / "study.db"

    @property
    def id(self) -> str:
        """The study's id."""
        return self.folder.name

    @staticmethod
    def create(parent: Path, spec: StudySpec) -> StudyStore:
        """Make the folder of a new study."""
        store = StudyStore(parent / f"{spec.name}-{secrets.token_hex(3)}")
        store.folder.mkdir(parents=True)
        store.write_spec(spec)
        store.ensure()
        return store

    def ensure(self) -> None:
        """Make what is missing in a folder that holds a study's specification."""
        with self._connect() as database:
            database.execute("create table if not exists trial (number integer primary key, body text not null)")

    @staticmethod
    def open(parent: Path, id: str) -> StudyStore:
        """Return a study that was begun before; raise `SpecError` if there is none of that id."""
        store = StudyStore(parent / id)
        if not store.database.exists():
            known = sorted(path.parent.name for path in parent.glob("*/study.db"))
            there = f"there are {', '.join(known)}" if known else "there is none"
            raise SpecError((FieldProblem("--resume", id, f"no such study in {parent}: {there}"),), "the study")
        return store

    def write_spec(self, spec: StudySpec) -> None:
        """Keep the study's specification."""
        (self.folder / "study.json").write_text(spec.model_dump_json(indent=1))

    def spec(self) -> StudySpec:
        """Return the study's specification."""
        return parse_study(json.loads((self.folder / "study.json").read_text()))

    def code(self, given: dict[str, Any] | None) -> dict[str, Any]:
        """Return what the jobs' processes are to have, Ray's `runtime_env`: what is given now, else what was before."""
        path = self.folder / "code.json"
        if given:
            path.write_text(json.dumps(given))
        known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return known

    def begin_failed_again(self) -> None:
        """Forget how trials failed: whoever goes on with the study begins them again, at the same points."""
        for trial in self.trials():
            if trial.state is State.FAILED:
                self.put(Trial(number=trial.number, kind=trial.kind, point=trial.point, asked=trial.asked))

    def put(self, trial: Trial) -> None:
        """Keep a trial as it is now."""
        with self._connect() as database:
            body = msgspec.json.encode(trial).decode()
            database.execute("insert or replace into trial values (?, ?)", (trial.number, body))

    def trials(self) -> list[Trial]:
        """Return all trials, in their order."""
        with self._connect() as database:
            rows = database.execute("select body from trial order by number").fetchall()
        return [msgspec.json.decode(body, type=Trial) for (body,) in rows]

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep others from running the same study at the same time; raise `SpecError` if one does."""
        with (self.folder / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise SpecError(
                    (FieldProblem("--resume", self.id, "is being run by another process"),), "the study"
                ) from None
            yield

    @contextlib.contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        database = sqlite3.connect(self.database, timeout=_BUSY_S)
        try:
            with database:
                yield database
        finally:
            database.close()

"""The knobs of jobs in the books, by version: theirs only grow, whatever the runtime's do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raysync.knobs import Knobs, turn
from raysync.spec import JobSpec
from service.store.database import Database
from service.store.job_row import JobRow, change, get_job


class KnobVersions:
    """Notes what the knobs of a job are turned to."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def turn_early(
        self, id: str, changes: Mapping[str, Any], expected_version: int | None, dry_run: bool
    ) -> Knobs | None:
        """Turn knobs of a job that no runtime has yet, and return them; None if one has, and is to be asked."""
        with self._database.write() as connection:
            row = get_job(connection, id, locked=True)
            if row.launched_on is not None or row.is_terminal:
                return None
            spec = JobSpec.model_validate_json(row.spec)
            knobs = turn(spec, Knobs(row.knob_version, row.knobs), changes, expected_version)
            if not dry_run:
                change(connection, id, {"knobs": knobs.values, "knob_version": knobs.version})
            return knobs

    def turned(self, id: str, version: int, shift: int, values: Mapping[str, Any]) -> JobRow:
        """Note the knobs a change will make, by the runtime's version and its shift, unless later ones are known.

        The shift only grows: a service that sees the runtime go back makes it larger.
        """
        with self._database.write() as connection:
            row = get_job(connection, id, locked=True)
            shift = max(shift, row.knob_shift)
            if version + shift > row.knob_version:
                changes = {"knob_version": version + shift, "knob_shift": shift, "knobs": dict(values)}
                change(connection, id, changes)
            return get_job(connection, id)

    def went_back(self, id: str, known: JobRow, asked: Knobs, in_force: int) -> JobRow:
        """Note that the runtime is at an earlier version than was known: what it has now is a new one in the books."""
        with self._database.write() as connection:
            row = get_job(connection, id, locked=True)
            if (row.knob_version, row.knob_shift) == (known.knob_version, known.knob_shift):
                new = row.knob_version + 1
                shift = new - asked.version
                changes = {"knob_version": new, "knob_version_in_force": in_force + shift, "knob_shift": shift}
                change(connection, id, {**changes, "knobs": asked.values})
            return get_job(connection, id)

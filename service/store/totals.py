"""What only grows, over all jobs: those that live, those that have ended, and those that were removed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from sqlalchemy import Connection, func, select

from raysync.metrics import TOLD
from service.store.database import Database
from service.store.job_row import LIVE, JobRow, light_rows
from service.store.tables import jobs, totals

TOTALS = tuple(metric.name for metric in TOLD if metric.is_total)
"""Metrics that only grow; a job that goes back to a checkpoint counts from there again, its totals go on."""
STEPS = "steps"
ENDED = "ended"


class Overview(NamedTuple):
    """How all jobs go, of one moment."""

    by_state: Mapping[str, int]
    live: list[JobRow]
    ended: Mapping[tuple[str, str], float]
    """What jobs that have ended came to, by name and strategy; `ended` counts them by state."""


class Totals:
    """Reads the totals; `count_end` is how they grow."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def overview(self) -> Overview:
        """Return everything of one moment: a job that ends meanwhile is neither missed nor counted twice."""
        by_state = select(jobs.c.state, func.count()).where(jobs.c.removed_s.is_(None)).group_by(jobs.c.state)
        with self._database.read("REPEATABLE READ") as connection:
            return Overview(
                {row[0]: row[1] for row in connection.execute(by_state)},
                light_rows(connection, jobs.c.state.in_(LIVE)),
                {(row.name, row.label): row.value for row in connection.execute(select(totals))},
            )


def totals_of(row: JobRow) -> dict[str, float]:
    """Return what a job has come to so far; one from before totals were kept, by what it told last."""
    told = {name: value for name in TOTALS if (value := row.metrics.get(name)) is not None}
    return {**told, **row.totals, STEPS: float(row.step)}


def count_end(database: Database, connection: Connection, row: JobRow) -> None:
    """Add a job that has just ended, in the transaction in which it did."""
    counts = Counter({(name, row.strategy): value for name, value in totals_of(row).items()})
    counts[ENDED, row.state] += 1
    for (name, label), value in sorted(counts.items()):
        insert = database.insert(totals).values(name=name, label=label, value=value)
        grown = {"value": totals.c.value + value}
        connection.execute(insert.on_conflict_do_update(index_elements=["name", "label"], set_=grown))

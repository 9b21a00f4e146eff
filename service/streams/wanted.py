"""What a reader of many jobs wants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from service.store import JobRow
from service.store.job_filter import JobFilter


class Wanted(NamedTuple):
    """What a reader wants."""

    jobs: Sequence[str] | None = None
    """These; None for all, as far as `labels` go."""
    studies: Sequence[str] | None = None
    """These; None for all if no jobs are named, else for none."""
    labels: Sequence[tuple[str, str | None]] = ()
    kinds: frozenset[str] | None = None
    """Of events; None for all."""
    summaries: bool = True

    @property
    def is_named(self) -> bool:
        """Whether there is an end: when all that is named has ended."""
        return self.jobs is not None or self.studies is not None

    def has_job(self, row: JobRow) -> bool:
        """Return whether a job is among them."""
        if self.jobs is None and self.studies is not None:
            return False
        return JobFilter(ids=self.jobs, labels=self.labels).holds(row)

    def has_study(self, id: str) -> bool:
        """Return whether a study is among them."""
        return id in self.studies if self.studies is not None else self.jobs is None and not self.labels

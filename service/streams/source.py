"""Where readers of many jobs get things from: the hub while they keep up, the books when they do not; read and rendered
once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from service.errors import NotFound
from service.store import JobRow, Store
from service.store.reading import Pools, Shared
from service.store.studies import StudyRow, TrialRow
from service.streams.hub import Hub, Told, Watched, told_after

_KEPT_HISTORY_BYTES = 16 << 20


class Shown(NamedTuple):
    """How rows become JSON."""

    job: Callable[[JobRow, int | None], str]
    study: Callable[[StudyRow, int], str]
    trial: Callable[[str, TrialRow], str]


class Source:
    """Jobs and studies for readers."""

    def __init__(self, hub: Hub, store: Store, pools: Pools, shown: Shown) -> None:
        self.hub, self.shown = hub, shown
        self._store, self._pools = store, pools
        self._history: Shared[tuple[JobRow, list[Told]]] = Shared(
            _KEPT_HISTORY_BYTES, lambda found: sum(len(event.text) for event in found[1])
        )

    async def caught_up(self, row: JobRow, after: int) -> tuple[JobRow, list[Told]]:
        """Return what a job told after an event, from the books, read once for all who catch up; nothing of one that
        was removed.
        """

        def read() -> tuple[JobRow, list[Told]]:
            try:
                return self._store.jobs.get(row.id), told_after(self._store, row.id, after)
            except NotFound:
                return row, []

        return await self._history.get((row.id, after), lambda: self._pools.history(read))

    def summary(self, job: Watched) -> str:
        """Return a job's summary, rendered once for all readers."""
        place = self.hub.places.get(job.row.id)
        if job.shown is None or job.shown[0] is not job.row or job.shown[1] != place:
            job.shown = (job.row, place, self.shown.job(job.row, place))
        return job.shown[2]

    async def since(self, created_s: float) -> list[JobRow]:
        """Return jobs that were submitted after a moment, or have not ended."""
        return await self._pools.history(partial(self._store.pulse.since, created_s))

    async def trials(self, study: str, after: int) -> list[TrialRow]:
        """Return the trials of a study that have changed after a number."""
        return await self._pools.history(partial(self._store.studies.trials, study, after))

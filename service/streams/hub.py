"""Everything that all jobs and studies tell, looked up once for all who listen to more than one.

Ten times a second at most the hub looks which jobs have changed, reads what those told, and keeps it for a while,
rendered. A reader that keeps up takes it from here; one that does not reads on later, from the books.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from service.errors import DatabaseUnavailable
from service.jobs.feed import as_json
from service.store import JobRow, Store
from service.store.pulse import Beat
from service.store.reading import Pools
from service.store.studies import StudyRow

BATCH_S = 0.1
POLL_S = 0.5
_PAGE = 500
_KEPT_EVENTS = 2000
"""Of one job."""
_KEPT_BYTES = 32 << 20
_KEPT_ENDED_S = 60.0
_STUDIES = 200

_CANCELLED_S = 1.0
"""A look that was cancelled is cancelled again after so long."""

logger = logging.getLogger(__name__)


class Told(NamedTuple):
    """An event, rendered."""

    sequence: int
    kind: str
    text: str


class Watched:
    """A job, and the last of what it told."""

    def __init__(self, row: JobRow, position: int) -> None:
        self.row = row
        self.position = position
        """The last event taken from the books."""
        self.told: deque[Told] = deque()
        self.ended_s: float | None = None
        self.shown: tuple[JobRow, int | None, str] | None = None
        """Its summary, as it was last rendered for any reader."""

    def after(self, sequence: int) -> list[Told] | None:
        """Return what was told after an event; None if that is not held any more."""
        if sequence >= self.position:
            return []
        if not self.told or self.told[0].sequence > sequence + 1:
            return None
        return [event for event in self.told if event.sequence > sequence]


class _Look(NamedTuple):
    """What a look into the books found."""

    beats: dict[str, Beat]
    rows: dict[str, JobRow]
    """Of jobs that have changed."""
    events: dict[str, list[Told]]
    places: dict[str, int]
    studies: dict[str, tuple[StudyRow, int]]


class Hub:
    """Looks after all jobs as long as somebody listens."""

    def __init__(self, store: Store, pools: Pools) -> None:
        self._store, self._pools = store, pools
        self.jobs: dict[str, Watched] = {}
        self.studies: dict[str, tuple[StudyRow, int]] = {}
        """Each with how many trials it has begun."""
        self.places: dict[str, int] = {}
        """Of jobs that wait in line."""
        self.removed: OrderedDict[str, None] = OrderedDict()
        """Jobs that were struck from the books, the last ones."""
        self._has_struck = False
        """Whether one was since readers were last woken."""
        self.readers = 0
        self._named: Counter[str] = Counter()
        self._beats: dict[str, Beat] = {}
        self._kept_bytes = 0
        self._studies_s = -math.inf
        self._due, self._changed = asyncio.Event(), asyncio.Event()
        self._looking = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def hint(self, job: str) -> None:
        """Say that a job has told something."""
        self._due.set()

    def strike(self, job: str) -> None:
        """Say that a job was removed."""
        self.removed[job], self._has_struck = None, True
        self._drop(job)
        while len(self.removed) > _PAGE:
            self.removed.popitem(last=False)
        self._due.set()

    @contextlib.asynccontextmanager
    async def listening(self, ids: Collection[str]) -> AsyncIterator[None]:
        """Have jobs looked after, those that live and these; inside, all of them are known."""
        self.readers += 1
        self._named.update(ids)
        try:
            await self._look()
            if self._task is None:
                self._task = asyncio.create_task(self._run(), name="hub")
            yield
        finally:
            self.readers -= 1
            self._named.subtract(ids)
            self._named = +self._named  # without those nobody names any more
            if self.readers == 0:
                await self.close()

    @property
    def next_change(self) -> asyncio.Event:
        """What is set with the next change; taken before a reader looks, so that none is missed."""
        return self._changed

    async def close(self) -> None:
        """Stop looking, and forget what was found."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        if self.readers == 0:
            self.jobs, self.studies, self._beats, self._kept_bytes = {}, {}, {}, 0
            self._studies_s = -math.inf
        while task is not None and not task.done():
            await asyncio.wait({task}, timeout=_CANCELLED_S)
            task.cancel()

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):  # wait_for may swallow the cancelling of what it waits in
                    await self._due.wait()
            self._due.clear()
            started_s = time.monotonic()
            try:
                await self._look()
            except DatabaseUnavailable:  # the manager says so, once for all jobs
                await asyncio.sleep(POLL_S)
            except Exception:
                logger.exception("the books cannot be read now; trying again")
                await asyncio.sleep(POLL_S)
            await asyncio.sleep(max(0.0, BATCH_S - (time.monotonic() - started_s)))

    async def _look(self) -> None:
        async with self._looking:
            ended = [id for id, job in self.jobs.items() if job.row.is_terminal]
            known = {id: job.position for id, job in self.jobs.items()}
            live = [id for id in self.jobs if id not in ended]
            has_to = time.monotonic() - self._studies_s >= POLL_S
            look = partial(self._read, [*self._named, *live], known, dict(self._beats), has_to)
            found = await self._pools.page(look)
            self._studies_s = time.monotonic() if has_to else self._studies_s
            self._take(found)

    def _read(
        self, ids: Collection[str], known: Mapping[str, int], before: Mapping[str, Beat], with_studies: bool
    ) -> _Look:
        beats = self._store.pulse.beats(ids)
        fresh = [id for id, beat in beats.items() if before.get(id) != beat]
        rows = self._store.pulse.rows(fresh) if fresh else {}
        told = {
            id: told_after(self._store, id, known[id])
            for id, row in rows.items()
            if id in known and row.last_sequence > known[id]
        }
        waiting = [id for id, beat in beats.items() if beat.state == "PENDING" and beat.admitted_s is None]
        places = self._store.queue.positions(waiting) if waiting else {}
        return _Look(beats, rows, told, places, self._read_studies() if with_studies else self.studies)

    def _read_studies(self) -> dict[str, tuple[StudyRow, int]]:
        studies = {
            study.id: study for study in (*self._store.studies.latest(_STUDIES), *self._store.studies.unfinished())
        }
        counts = self._store.studies.counts([*studies])
        return {id: (study, counts.get(id, 0)) for id, study in studies.items()}

    def _take(self, look: _Look) -> None:
        has_changed = bool(look.rows or look.events or look.places != self.places or look.studies != self.studies)
        now_s = time.monotonic()
        for id, row in look.rows.items():
            if id in self.removed:
                continue
            job = self.jobs.get(id)
            if job is None:  # what it told before is in the books
                self.jobs[id] = job = Watched(row, row.last_sequence)
            told = look.events.get(id, [])
            self._hold(job, told)
            is_whole = job.position >= row.last_sequence
            job.row = row
            if is_whole:
                self._beats[id] = look.beats[id]
            else:
                self._due.set()  # there is more of it
            job.ended_s = now_s if row.is_terminal and job.ended_s is None else job.ended_s
        for id in [id for id in self.jobs if self._is_done_with(id, look, now_s)]:
            self._drop(id)
        self.places, self.studies = look.places, look.studies
        if has_changed or self._has_struck:
            self._has_struck = False
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()

    def _is_done_with(self, id: str, look: _Look, now_s: float) -> bool:
        """Return whether a job needs no more looking after: it is gone, or has ended some time ago and nobody asked."""
        ended_s = self.jobs[id].ended_s
        if ended_s is None:
            return id not in look.beats
        return id not in self._named and now_s - ended_s > _KEPT_ENDED_S

    def _drop(self, id: str) -> None:
        job = self.jobs.pop(id, None)
        self._beats.pop(id, None)
        self._kept_bytes -= sum(len(event.text) for event in job.told) if job is not None else 0

    def _hold(self, job: Watched, events: Sequence[Told]) -> None:
        for told in events:
            job.told.append(told)
            job.position = told.sequence
            self._kept_bytes += len(told.text)
        while len(job.told) > _KEPT_EVENTS or (job.told and self._kept_bytes > _KEPT_BYTES):
            self._kept_bytes -= len(job.told.popleft().text)


def told_after(store: Store, id: str, after: int) -> list[Told]:
    """Return the next of what a job told, from the books, rendered; to be called in a thread."""
    return [Told(event.sequence, event.kind, as_json(id, event)) for event in store.events.after(id, after, _PAGE)]

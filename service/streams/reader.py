"""One reader of many jobs and studies: where it is, and the messages that bring it up to date."""

from __future__ import annotations

import json
import time

from service.store import JobRow
from service.streams.hub import Watched
from service.streams.position import Position, message
from service.streams.source import Source
from service.streams.wanted import Wanted

_MAX_BYTES = 256 << 10
"""Of one message, about."""
_SUMMARY_S = 0.5
_REMEMBERED_S = 600.0
"""So long a job that has ended stays in a reader's position: clocks of other machines say when it did."""
_YOUNG_S, _SKEW_S = 300.0, 5.0


class Reader:
    """Where one reader is, and what it is to be told."""

    def __init__(self, source: Source, wanted: Wanted, start: Position, is_resumed: bool) -> None:
        self._source, self._hub, self._wanted = source, source.hub, wanted
        self._at, self._is_resumed = start, is_resumed
        self.named = list(dict.fromkeys([*(wanted.jobs or ()), *(start.jobs if is_resumed else ())]))
        self.has_ended = self.is_owed = False
        """Owed: something has changed that was not told yet."""
        self._known: dict[str, Watched] = {}
        """Jobs this reader gets, also those that ended so long ago that the hub has let go of them."""
        self._summaries: dict[str, str] = {}
        self._studies: dict[str, str] = {}
        self._old_studies: set[str] = set()
        self._summed_s = 0.0
        self._done: dict[str, float] = {}
        """Jobs that have ended and been told to their end, and when that was."""
        self._gaps: dict[str, int] = {}

    async def begin(self) -> None:
        """Find where each job is begun: where the reader was, or with what comes next; new ones at their start."""
        young_s = max(self._at.begun_s - _SKEW_S, self._at.time_s - _YOUNG_S)
        if not self._wanted.is_named:
            rows = await self._source.since(young_s)
            for row in rows:
                if row.id not in self._hub.jobs and self._wanted.has_job(row):
                    self._missed(row)
        for id, job in self._hub.jobs.items():
            if self._wanted.has_job(job.row) and id not in self._at.jobs:
                is_young = self._is_resumed and job.row.created_s >= young_s
                self._at.jobs[id] = -1 if is_young else job.row.last_sequence
        for id, (study, _) in self._hub.studies.items():
            if not self._wanted.has_study(id) or id in self._at.studies:
                continue
            is_young = self._is_resumed and study.created_s >= young_s
            if self._wanted.studies is not None or is_young:
                self._at.studies[id] = -1
            elif study.is_over:
                self._old_studies.add(id)  # none of its trials changes any more
            else:
                self._at.studies[id] = study.sequence

    def _missed(self, row: JobRow) -> None:
        """Note a young job that has ended: while the reader was away, or just before it first came."""
        if self._is_resumed:
            self._known[row.id] = Watched(row, row.last_sequence)
        else:
            self._at.jobs[row.id] = row.last_sequence
            self._done[row.id] = time.monotonic()

    async def messages(self) -> list[bytes]:
        """Return what there is to say now. Only the last message says where the reader is then, and events, of which
        none may come twice, are the last: of the others it does no harm if the connection breaks off between them.
        """
        events = await self._events()
        found = [*self._jobs(), *self._struck(), *await self._of_studies(), *events]
        self._at.time_s = time.time()
        chunks = [message(kind, data, None) for kind, data in found[:-1]]
        chunks += [message(kind, data, self._at) for kind, data in found[-1:]]
        if not chunks and self._is_over():
            self.has_ended = self._at.has_ended = True
            chunks.append(message("end", {}, self._at))
        return chunks

    # Jobs

    def _mine(self) -> dict[str, Watched]:
        for id, job in self._hub.jobs.items():
            if self._known.get(id) is not job and self._wanted.has_job(job.row):
                self._known[id] = job
        return self._known

    async def _events(self) -> list[tuple[str, str]]:
        texts, gaps, size = list[str](), list[tuple[str, str]](), 0
        mine = self._mine()
        self.is_owed = False
        for id, job in mine.items():
            at = self._at.jobs.setdefault(id, -1)  # it was submitted since
            if at >= job.position:
                self._note_end(id, job)
                continue
            if size > _MAX_BYTES:
                self.is_owed = True
                continue
            held = job.after(at)
            told = held if held is not None else []
            if held is None:
                row, found = await self._source.caught_up(job.row, at)
                told = [event for event in found if event.sequence <= job.position]
                if at + 1 < row.thinned_below > self._gaps.get(id, 0):
                    self._gaps[id] = row.thinned_below
                    gaps.append(("gap", _gap(row, at)))
            kinds = self._wanted.kinds
            chosen = [event.text for event in told if kinds is None or event.kind in kinds]
            texts += chosen
            size += sum(map(len, chosen))
            self._at.jobs[id] = told[-1].sequence if told else job.position
            self.is_owed |= self._at.jobs[id] < job.position
            self._note_end(id, job)
        self._forget()
        return [*gaps, *([("events", f"[{','.join(texts)}]")] if texts else [])]

    def _note_end(self, id: str, job: Watched) -> None:
        if job.row.is_terminal and self._at.jobs[id] >= job.row.last_sequence:
            self._done.setdefault(id, time.monotonic())

    def _forget(self) -> None:
        """Leave out of the position what ended long ago: all of it was told."""
        if self._wanted.jobs is None:
            long_ago_s = time.monotonic() - _REMEMBERED_S
            for id in [id for id, ended_s in self._done.items() if ended_s < long_ago_s and id not in self._hub.jobs]:
                self._at.jobs.pop(id, None)
                self._known.pop(id, None)
                del self._done[id]

    def _jobs(self) -> list[tuple[str, str]]:
        """Return the jobs whose summary has changed: states at once, the rest twice a second."""
        if not self._wanted.summaries:
            return []
        fresh: dict[str, str] = {}
        has_new_state = False
        for id, job in self._mine().items():
            text = self._source.summary(job)
            if self._summaries.get(id) != text:
                fresh[id] = text
                has_new_state |= f'"state":"{job.row.state}"' not in self._summaries.get(id, "")
        if fresh and not has_new_state and time.monotonic() - self._summed_s < _SUMMARY_S:
            self.is_owed = True
            return []
        if not fresh:
            return []
        self._summaries |= fresh
        self._summed_s = time.monotonic()
        return [("jobs", f"[{','.join(fresh.values())}]")]

    def _struck(self) -> list[tuple[str, list[str]]]:
        gone = [id for id in self._hub.removed if id in self._at.jobs or id in self._summaries]
        for id in gone:
            self._at.jobs.pop(id, None)
            self._summaries.pop(id, None)
            self._known.pop(id, None)
        return [("removed", gone)] if gone else []

    # Studies

    async def _of_studies(self) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        fresh: dict[str, str] = {}
        trials = list[str]()
        for id, (row, begun) in list(self._hub.studies.items()):
            if not self._wanted.has_study(id):
                continue
            text = self._source.shown.study(row, begun)
            if self._studies.get(id) != text:
                fresh[id] = text
            at = row.sequence if id in self._old_studies else self._at.studies.setdefault(id, -1)
            if row.sequence > at:
                rows = await self._source.trials(id, at)
                trials += [self._source.shown.trial(id, trial) for trial in rows]
                self._at.studies[id] = max([at, *(trial.sequence for trial in rows)])
        self._studies |= fresh
        if fresh and self._wanted.summaries:
            found.append(("studies", f"[{','.join(fresh.values())}]"))
        return [*found, *([("trials", f"[{','.join(trials)}]")] if trials else [])]

    def _is_over(self) -> bool:
        """Return whether all that is named has ended, and was told."""
        if not self._wanted.is_named or self.is_owed:
            return False
        live = [job for id, job in self._mine().items() if id not in self._done]
        known = {*self._known, *self._hub.removed}
        unseen = [id for id in self._wanted.jobs or () if id not in known]
        going = [
            id for id in self._wanted.studies or () if id in self._hub.studies and not self._hub.studies[id][0].is_over
        ]
        return not (live or unseen or going)


def _gap(row: JobRow, after: int) -> str:
    why = f"the job is long: of its older metrics and decisions only every {row.thinned_to_every}th is kept"
    return json.dumps({"job": row.id, "after": after, "before": row.thinned_below, "why": why})

"""What a job tells about itself, on disk: numbered events as JSON lines, TensorBoard files, and all actors' log lines.

The controller writes it. Where the job's folder is not on this machine's file system, files are written to a local
folder first, and what they grow by is copied there now and then and at the end.
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import logging
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from actors.storage.folder import Folder
from actors.storage.pieces import Uploaded, read_lines, size_of
from actors.storage.tensorboard import Board
from raysync.engine.messages import REMEMBERED
from raysync.events import AnyEvent, Decision, Event, Metrics
from raysync.ports import LogPage, Records

_REMEMBERED = 20_000
_EVENTS, _LOGS = "events.jsonl", "logs.txt"
_INDEXED_EVERY = 1000
_TAIL_BYTES = 1 << 20

_encode = msgspec.json.Encoder().encode

logger = logging.getLogger(__name__)


class Journal:
    """Appends, remembers the latest, and finds the rest on disk.

    Numbers go up by one and are never used twice: a journal that may have lost its end is told by `first_sequence`
    which numbers may have been given out, and goes on after them; `claim` is called with each number before it is
    used, and may refuse with `OSError`.
    """

    def __init__(
        self, folder: Folder, first_sequence: int = 0, claim: Callable[[int], None] = lambda sequence: None
    ) -> None:
        self._claim = claim
        self._path = Path(folder.path) if folder.is_local else Path(tempfile.mkdtemp(prefix="raysync-journal-"))
        self._path.mkdir(parents=True, exist_ok=True)
        names = () if folder.is_local else (_EVENTS, _LOGS)
        self._uploads = [Uploaded(folder, name, self._path / name) for name in names]
        self._recent: deque[Event] = deque(maxlen=_REMEMBERED)
        self.next_sequence, self.incarnation, self.last_source = 0, 0, -1
        self._size_bytes = self._num_records = 0
        self._index = list[tuple[int, int]]()
        """Number and place in the file of one record in every so many."""
        self.latest: dict[str, float] = {}
        """The last value of every metric."""
        self.step = 0
        self.decided_step = -1
        """The step of the last decision that was told."""
        self.decided: deque[tuple[int, bool, int, str, tuple[int, ...]]] = deque(maxlen=REMEMBERED)
        """The last ones: step, whether to synchronise, round, reason."""
        self.last_s = 0.0
        """The time of the last record."""
        self._replay()
        for upload in self._uploads[:1]:
            upload.cut(self._size_bytes)
        self.next_sequence = max(self.next_sequence, first_sequence)
        self._events = (self._path / _EVENTS).open("ab", buffering=0)  # on disk before a reader hears of it
        self._lines, self._writing_lines = (self._path / _LOGS).open("a", encoding="utf-8"), threading.Lock()
        self._board = Board(self._path / "tensorboard", folder)
        self._owed: deque[tuple[AnyEvent, float]] = deque()
        """The controller's own events that could not be written yet."""
        self.grown = threading.Condition()

    def begin(self, incarnation: int, *, takes_over: bool = False) -> None:
        """Hear another coordinator from now on, which counts its events anew, and its steps unless it takes over."""
        if incarnation != self.incarnation:
            self.incarnation, self.last_source = incarnation, -1
            self.decided_step = self.decided_step if takes_over else -1
            self.decided.clear() if not takes_over else None

    def add(self, *events: Event) -> None:
        """Take in a coordinator's events, in order and each once, with one write; raise `OSError` if they cannot be
        written now: none of them is heard then.
        """
        fresh = [event for event in events if event.sequence > self.last_source]
        if not fresh:
            return
        self._pay()
        numbers = range(self.next_sequence, self.next_sequence + len(fresh))
        self._append(
            [
                msgspec.structs.replace(event, sequence=number, source=event.sequence, incarnation=self.incarnation)
                for number, event in zip(numbers, fresh, strict=True)
            ]
        )
        self.last_source = fresh[-1].sequence

    def note(self, body: AnyEvent, time_s: float) -> None:
        """Take in an event of the controller's own; what cannot be written now is written later."""
        self._owed.append((body, time_s))
        try:
            self._pay()
        except OSError as error:
            logger.warning("an event is written down later: %s", error)

    def after(self, sequence: int, limit: int) -> list[Event]:
        """Return up to `limit` records with larger numbers, from memory or from disk."""
        with self.grown:
            recent = list(self._recent)
        if not recent or sequence + 1 >= recent[0].sequence:
            return [record for record in recent if record.sequence > sequence][:limit]
        found: list[Event] = []
        with (self._path / _EVENTS).open("rb") as file:
            before = bisect.bisect_right(self._index, (sequence + 1, self._size_bytes)) - 1
            file.seek(self._index[max(0, before)][1])
            for line in file:
                record = msgspec.json.decode(line, type=Event)
                if record.sequence > sequence:
                    found.append(record)
                if len(found) == limit:
                    break
        return found

    def lines(self, lines: list[str]) -> None:
        """Take in log lines."""
        with self._writing_lines:
            if not self._lines.closed:
                self._lines.write("".join(f"{line}\n" for line in lines))
                self._lines.flush()

    def flush(self) -> None:
        """Make everything visible where the job's folder is; raise `OSError` if it cannot be now."""
        self._pay()
        self._board.flush()
        for upload in self._uploads:
            upload.push()

    def close(self) -> None:
        """Write the rest."""
        self.flush()
        self._events.close()
        self._lines.close()
        self._board.close()

    def _pay(self) -> None:
        """Write down what is owed, in order."""
        while self._owed:
            body, time_s = self._owed[0]
            record = Event(
                sequence=self.next_sequence,
                kind=body.kind,
                time_s=time_s,
                step=self.step,
                incarnation=self.incarnation,
                data=body.data,
            )
            self._append([record])
            self._owed.popleft()

    def _append(self, records: Sequence[Event]) -> None:
        lines = [_encode(record) + b"\n" for record in records]
        for record in records:
            self._claim(record.sequence)
        self._write(b"".join(lines))
        for record, line in zip(records, lines, strict=True):
            self._count(record, line)
            self._observe(record)
        with self.grown:
            self._recent.extend(records)
            self.grown.notify_all()
        for record in records:
            if record.kind == Metrics.kind:
                self._board.draw(record)

    def _write(self, lines: bytes) -> None:
        """Write whole lines or nothing: a full disk may take a part of them."""
        try:
            if self._events.write(lines) != len(lines):
                raise OSError(errno.ENOSPC, "only a part of the events could be written")
        except OSError:
            with contextlib.suppress(OSError):
                self._events.truncate(self._size_bytes)
            raise

    def _count(self, record: Event, line: bytes) -> None:
        if self._num_records % _INDEXED_EVERY == 0:
            self._index.append((record.sequence, self._size_bytes))
        self._num_records += 1
        self._size_bytes += len(line)
        self.next_sequence = record.sequence + 1

    def _observe(self, record: Event) -> None:
        self.step, self.last_s = max(self.step, record.step), max(self.last_s, record.time_s)
        if record.kind == Decision.kind:
            self.decided_step = record.step
            data = record.data
            late = tuple(data.get("late", ()))
            self.decided.append((record.step, data["sync"], data["round"], data["reason"], late))
        if record.kind == Metrics.kind:
            self.latest |= record.data

    def _replay(self) -> None:
        """Continue a journal a controller before this one has begun; a torn last line is cut off."""
        path = self._path / _EVENTS
        if not path.exists():
            return
        with path.open("rb") as file:
            for line in file:
                try:
                    record = msgspec.json.decode(line, type=Event)
                except msgspec.MsgspecError:
                    break
                self._count(record, line)
                if record.source is not None:
                    self.incarnation, self.last_source = record.incarnation, record.source
                self._recent.append(record)
                self._observe(record)
        with path.open("ab") as file:
            file.truncate(self._size_bytes)


def read_records(folder: Folder, offset: int) -> Records:
    """Return the next page of a journal that may have no writer any more, from a place in its file."""
    lines, offset = read_lines(folder, _EVENTS, offset)
    return Records([msgspec.json.decode(line, type=Event) for line in lines], offset)


def all_records(folder: Folder) -> list[Event]:
    """Return all of a journal."""
    page = read_records(folder, 0)
    records = page.records
    while page.records:
        page = read_records(folder, page.offset)
        records += page.records
    return records


def read_log(folder: Folder, offset: int | None, tail_lines: int = 1000) -> LogPage:
    """Return the next page of a job's log, or its last lines if `offset` is None."""
    if offset is not None:
        lines, end = read_lines(folder, _LOGS, offset)
        return LogPage([line.decode(errors="replace") for line in lines], end)
    start = max(0, size_of(folder, _LOGS) - _TAIL_BYTES)
    lines, end = read_lines(folder, _LOGS, start)
    return LogPage([line.decode(errors="replace") for line in lines[1 if start else 0 :]][-tail_lines:], end)

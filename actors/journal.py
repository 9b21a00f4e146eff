"""What a job tells about itself, on disk: numbered events as JSON lines, TensorBoard files, and everybody's log lines.

The controller writes it. Where the job's folder is not on this machine's file system, files are written to a local
folder first and copied there now and then and at the end.
"""

from __future__ import annotations

import math
import tempfile
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from actors.storage import Folder
from raysync.metrics import Event
from raysync.ports import LogPage, Record, Records

_REMEMBERED = 20_000
_DRAW_EVERY_S = 0.1
"""TensorBoard gets the evaluations and at most ten steps a second; events.jsonl has all."""
_EVENTS, _LOGS = "events.jsonl", "logs.txt"
_INDEXED_EVERY = 1000
_PAGE_BYTES = 1 << 20


class Journal:
    """Appends, remembers the latest, and finds the rest on disk."""

    def __init__(self, job: str, folder: Folder) -> None:
        self._job, self._folder = job, folder
        self._path = Path(folder.path) if folder.is_local else Path(tempfile.mkdtemp(prefix="raysync-journal-"))
        self._path.mkdir(parents=True, exist_ok=True)
        if not folder.is_local:
            for name in (_EVENTS, _LOGS):
                if folder.size(name) is not None:  # a controller before this one has begun it
                    (self._path / name).write_bytes(folder.read(name))
        self._recent: deque[Record] = deque(maxlen=_REMEMBERED)
        self.next_sequence, self.last_source = 0, -1
        self._size_bytes = 0
        self._index = list[int]()
        """Where in the file every so manieth record begins."""
        self.latest: dict[str, float] = {}
        """The last value of every metric."""
        self.step = 0
        self._replay()
        self._events = (self._path / _EVENTS).open("ab", buffering=0)  # written before anybody hears of it
        self._lines, self._writing_lines = (self._path / _LOGS).open("a", encoding="utf-8"), threading.Lock()
        self._board: Any = None
        self._drawn_s = -math.inf
        self.grown = threading.Condition()

    def add(self, event: Event) -> None:
        """Take in a coordinator's event, once."""
        if event.sequence <= self.last_source:
            return
        self.last_source = event.sequence
        self._append(
            Record(
                sequence=self.next_sequence,
                kind=event.kind,
                time_s=event.time_s,
                step=event.step,
                worker=event.worker,
                knob_version=event.knob_version,
                source=event.sequence,
                data=event.data,
            )
        )

    def note(self, kind: str, data: Mapping[str, Any], time_s: float) -> None:
        """Take in an event of the controller's own."""
        self._append(Record(sequence=self.next_sequence, kind=kind, time_s=time_s, step=self.step, data=dict(data)))

    def rewind(self) -> None:
        """The coordinator goes back to a checkpoint and counts anew from there."""
        self.last_source = -1

    def after(self, sequence: int, limit: int) -> list[Record]:
        """Return up to `limit` records with larger numbers, from memory or from disk."""
        with self.grown:
            recent = list(self._recent)
        if not recent or sequence + 1 >= recent[0].sequence:
            return [record for record in recent if record.sequence > sequence][:limit]
        found: list[Record] = []
        with (self._path / _EVENTS).open("rb") as file:
            file.seek(self._index[max(0, sequence + 1) // _INDEXED_EVERY])
            for line in file:
                record = msgspec.json.decode(line, type=Record)
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
        """Make everything visible where the job's folder is."""
        if self._board is not None:
            self._board.flush()
        if not self._folder.is_local:
            for path in self._path.rglob("*"):
                if path.is_file():
                    self._folder.write(str(path.relative_to(self._path)), path.read_bytes())

    def close(self) -> None:
        """Write the rest."""
        self.flush()
        self._events.close()
        self._lines.close()
        if self._board is not None:
            self._board.close()

    def _append(self, record: Record) -> None:
        line = msgspec.json.encode(record) + b"\n"
        self._events.write(line)
        self._count(record, line)
        self._observe(record)
        with self.grown:
            self._recent.append(record)
            self.grown.notify_all()
        if record.kind == "metrics" and (record.time_s >= self._drawn_s + _DRAW_EVERY_S or "eval/loss" in record.data):
            self._drawn_s = record.time_s
            self._draw(record)

    def _count(self, record: Record, line: bytes) -> None:
        if record.sequence % _INDEXED_EVERY == 0:
            self._index.append(self._size_bytes)
        self._size_bytes += len(line)
        self.next_sequence = record.sequence + 1

    def _observe(self, record: Record) -> None:
        self.step = max(self.step, record.step)
        if record.kind == "metrics":
            self.latest |= record.data

    def _draw(self, record: Record) -> None:
        from tensorboard.compat.proto.event_pb2 import Event as BoardEvent
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if self._board is None:
            self._board = EventFileWriter(str(self._path / "tensorboard"))
        values = [
            Summary.Value(tag=name, simple_value=value)
            for name, value in record.data.items()
            if isinstance(value, (int, float)) and math.isfinite(value)
        ]
        self._board.add_event(BoardEvent(wall_time=record.time_s, step=record.step, summary=Summary(value=values)))

    def _replay(self) -> None:
        """Continue a journal a controller before this one has begun; a torn last line is cut off."""
        path = self._path / _EVENTS
        if not path.exists():
            return
        with path.open("rb") as file:
            for line in file:
                try:
                    record = msgspec.json.decode(line, type=Record)
                except msgspec.MsgspecError:
                    break
                self._count(record, line)
                self.last_source = record.source if record.source is not None else self.last_source
                self._recent.append(record)
                self._observe(record)
        with path.open("ab") as file:
            file.truncate(self._size_bytes)


def read_records(folder: Folder, offset: int) -> Records:
    """Return the next page of a journal nobody may be writing any more, from a place in its file."""
    lines, offset = _read_lines(folder, _EVENTS, offset)
    return Records([msgspec.json.decode(line, type=Record) for line in lines], offset)


def read_log(folder: Folder, offset: int | None, tail_lines: int = 1000) -> LogPage:
    """Return the next page of a job's log, or its last lines if `offset` is None."""
    if offset is not None:
        lines, end = _read_lines(folder, _LOGS, offset)
        return LogPage([line.decode(errors="replace") for line in lines], end)
    start = max(0, (folder.size(_LOGS) or 0) - _PAGE_BYTES)
    lines, end = _read_lines(folder, _LOGS, start)
    return LogPage([line.decode(errors="replace") for line in lines[1 if start else 0 :]][-tail_lines:], end)


def _read_lines(folder: Folder, name: str, offset: int) -> tuple[list[bytes], int]:
    """Return whole lines from a place in a file, a page of them, and where they end."""
    size = folder.size(name)
    if size is None or offset >= size:
        return [], offset
    page = _PAGE_BYTES
    with folder.filesystem.open_input_file(f"{folder.path}/{name}") as file:
        while True:
            data: bytes = file.read_at(page, offset)
            whole = data.rfind(b"\n") + 1
            if whole or len(data) < page:
                return data[:whole].splitlines(), offset + whole
            page *= 2  # one line longer than a page

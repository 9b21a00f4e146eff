"""The metrics again, as TensorBoard reads them."""

from __future__ import annotations

import logging
import math
import time
from pathlib import Path
from typing import Any

from actors.storage.folder import Folder
from raysync.events import Event
from raysync.metrics import is_evaluation

_DRAW_EVERY_S = 0.1
"""TensorBoard gets the evaluations and at most ten steps a second; events.jsonl has all."""
_COPY_EVERY_S = 30.0
_FULL_BYTES = 256 << 10
"""A file that is copied elsewhere is ended when it has so many: each copy of it is a whole one."""

logger = logging.getLogger(__name__)


class Board:
    """Writes event files into a folder here, and copies them where the job's folder is, if that is elsewhere.

    The charts are a convenience: what of them cannot be written is missing there, and nowhere else.
    """

    def __init__(self, path: Path, folder: Folder) -> None:
        self._path, self._folder = path, folder
        self._writer: Any = None
        self._drawn_s = -math.inf
        self._plain: set[str] = set()
        self._sent: dict[str, int] = {}
        """How much of each file is where the job's folder is."""
        self._copied_s = -math.inf

    def draw(self, event: Event) -> None:
        """Take in a metrics event."""
        if event.time_s < self._drawn_s + _DRAW_EVERY_S and not self._evaluates(event):
            return
        self._drawn_s = event.time_s
        try:
            self._draw(event)
        except OSError as error:
            self._give_up(error)

    def _evaluates(self, event: Event) -> bool:
        """Return whether an event holds an evaluation; names that are none are remembered, as they come every step."""
        unknown = event.data.keys() - self._plain
        self._plain |= {name for name in unknown if not is_evaluation(name)}
        return not event.data.keys() <= self._plain

    def flush(self, is_last: bool = False) -> None:
        """Make what was drawn visible; raise `OSError` if it cannot be copied where the job's folder is."""
        try:
            if self._writer is not None:
                self._writer.flush()
        except OSError as error:
            self._give_up(error)
        if not self._folder.is_local and (is_last or time.monotonic() - self._copied_s > _COPY_EVERY_S):
            self._copy()
            self._copied_s = time.monotonic()

    def close(self) -> None:
        """Write the rest."""
        self.flush(is_last=True)
        if self._writer is not None:
            self._writer.close()

    def _draw(self, event: Event) -> None:
        from tensorboard.compat.proto.event_pb2 import Event as BoardEvent
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if self._writer is None:
            self._writer = EventFileWriter(str(self._path))
        values = [
            Summary.Value(tag=name, simple_value=value)
            for name, value in event.data.items()
            if isinstance(value, (int, float)) and math.isfinite(value)
        ]
        self._writer.add_event(BoardEvent(wall_time=event.time_s, step=event.step, summary=Summary(value=values)))

    def _copy(self) -> None:
        for path in sorted(self._path.iterdir()) if self._path.exists() else ():
            size = path.stat().st_size
            if self._sent.get(path.name) != size:
                self._folder.write(f"{self._path.name}/{path.name}", path.read_bytes()[:size])
                self._sent[path.name] = size
                if size >= _FULL_BYTES and self._writer is not None:
                    self._writer.close()
                    self._writer = None  # the next is drawn into a new file

    def _give_up(self, error: OSError) -> None:
        logger.warning("charts are not written now: %s", error)
        self._writer = None

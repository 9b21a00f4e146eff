"""Writes parts of checkpoints on a thread of its own, one after the other, while the cores of its process go on."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from raysync.address import Address
from raysync.engine import messages as m
from raysync.errors import CheckpointError

Write = Callable[[], dict[str, str]]
"""Writes what was copied; returns the files with their checksums."""

LONGEST_S = 1800.0
"""A part that takes longer is given up: storage that hangs must not keep a job from its next checkpoint, or its end."""

logger = logging.getLogger(__name__)


class PartWriter:
    """A queue of parts, and the word about each that comes back on the writer's thread."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._queue: deque[tuple[Address, int, Write]] = deque()
        self._told: dict[tuple[Address, int], tuple[float, Callable[[m.PartKept], None]]] = {}
        """Whoever waits for a part, and since when."""
        self._busy = threading.Lock()
        self._thread: threading.Thread | None = None

    def write(self, who: Address, checkpoint: int, write: Write, tell: Callable[[m.PartKept], None]) -> None:
        """Have a part written; `tell` hears of it, once."""
        with self._busy:
            self._told[who, checkpoint] = (self._now_s(), tell)
            self._queue.append((who, checkpoint, write))
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
                self._thread.start()

    def give_up(self) -> None:
        """Say of what takes too long that it cannot be written; called now and then."""
        if not self._told:
            return
        with self._busy:
            late = [key for key, (since_s, _) in self._told.items() if self._now_s() - since_s > LONGEST_S]
        for who, checkpoint in late:
            self._tell(who, m.PartKept(checkpoint=checkpoint, problem=f"it was not written within {LONGEST_S:.0f} s"))

    def _run(self) -> None:
        while (found := self._next()) is not None:
            who, checkpoint, write = found
            self._tell(who, _outcome(who, checkpoint, write))

    def _next(self) -> tuple[Address, int, Write] | None:
        """Return what to write next: of parts of one core only the newest, the others were given up meanwhile."""
        while True:
            with self._busy:
                if not self._queue:
                    self._thread = None
                    return None
                who, checkpoint, write = self._queue.popleft()
                newer = any(other == who and number > checkpoint for other, number, _ in self._queue)
            if not newer:
                return who, checkpoint, write
            self._tell(who, m.PartKept(checkpoint=checkpoint, problem="a newer one was asked for meanwhile"))

    def _tell(self, who: Address, outcome: m.PartKept) -> None:
        with self._busy:
            waiting = self._told.pop((who, outcome.checkpoint), None)
        if waiting is not None:
            waiting[1](outcome)


def _outcome(who: Address, checkpoint: int, write: Write) -> m.PartKept:
    try:
        return m.PartKept(checkpoint=checkpoint, files=write())
    except (OSError, CheckpointError) as error:
        return m.PartKept(checkpoint=checkpoint, problem=str(error) or type(error).__name__)
    except Exception as error:  # a job trains on without its checkpoint, and says so
        logger.exception("the part of %s in checkpoint %d could not be written", who, checkpoint)
        return m.PartKept(checkpoint=checkpoint, problem=f"{type(error).__name__}: {error}")

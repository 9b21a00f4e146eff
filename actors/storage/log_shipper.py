"""Log lines of an actor on their way to the controller: everything logged or printed, with the actor's name."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import IO, Any

_FLUSH_S = 0.3
_KEPT_LINES = 2000


class LogShipper(logging.Handler):
    """Collects lines and hands them over from a thread of its own; what cannot be handed over waits, up to a bound."""

    def __init__(self, name: str, ship: Callable[[list[str]], None]) -> None:
        super().__init__()
        self._name, self._ship = name, ship
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._due = threading.Event()
        self.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
        threading.Thread(target=self._run, name="lines", daemon=True).start()

    def install(self) -> None:
        """Take in the root logger, stdout and stderr; Ray's own files get them as before."""
        logging.getLogger().addHandler(self)
        logging.getLogger().setLevel(logging.INFO)
        logging.getLogger("numba").setLevel(logging.WARNING)
        sys.stdout, sys.stderr = _Tee(sys.stdout, self.add), _Tee(sys.stderr, self.add)

    def emit(self, record: logging.LogRecord) -> None:
        """Take in a log record."""
        self.add(self.format(record))

    def add(self, text: str) -> None:
        """Take in text, line by line."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S")
        for line in text.splitlines():
            if line.strip():
                self._lines.append(f"{stamp} {self._name} | {line}")
        self._due.set()

    def flush(self) -> None:
        """Hand over what there is now."""
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        if not lines:
            return
        try:
            self._ship(lines)
        except Exception:  # the controller is away: keep them for later
            self._lines.extendleft(reversed(lines))

    def _run(self) -> None:
        while True:
            self._due.wait()
            time.sleep(_FLUSH_S)
            self._due.clear()
            self.flush()


class _Tee:
    """A stream that also goes to the shipper, one line at a time."""

    def __init__(self, stream: IO[str], add: Callable[[str], None]) -> None:
        self._stream, self._add, self._open = stream, add, ""

    def write(self, text: str) -> int:
        self._open += text
        *whole, self._open = self._open.split("\n")
        for line in whole:
            self._add(line)
        return self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

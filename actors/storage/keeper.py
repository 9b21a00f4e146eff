"""Keeps a controller's memory in the job's folder, through storage that fails now and then."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from actors.storage.folder import Folder
from actors.storage.retry import LONG_S, Backoff, patiently
from raysync.control.controller_memory import Memory, read, written

STATUS = "status.json"
_RESERVED = 5_000
"""So many event numbers are claimed ahead: each claim costs a write."""

logger = logging.getLogger(__name__)


class Keeper:
    """Holds the memory and writes it down; what cannot be written now is tried again later, without a wait."""

    def __init__(self, folder: Folder, fresh: Callable[[], Memory]) -> None:
        self._folder, self._backoff, self._writing = folder, Backoff(), threading.Lock()
        self.memory = patiently(self._found, f"reading {folder.uri}/{STATUS}", LONG_S) or fresh()

    def save(self) -> bool:
        """Write the memory down; return whether that succeeded."""
        with self._writing:
            try:
                self._folder.write(STATUS, written(self.memory))
            except OSError as error:
                wait_s = self._backoff.failed()
                logger.warning("%s is written again in %g s: %s", STATUS, wait_s, error)
                return False
            self._backoff.succeeded()
            return True

    def insist(self) -> None:
        """Write the memory down; raise `OSError` if that fails several times."""
        if not self.save():
            patiently(lambda: self._folder.write(STATUS, written(self.memory)), f"writing {STATUS}")
            self._backoff.succeeded()

    def catch_up(self) -> None:
        """Write down what could not be written before, once it is time to try again."""
        if self._backoff.is_failing and self._backoff.is_due:
            self.save()

    def claim(self, sequence: int) -> None:
        """Claim an event number, and some ahead, before it is given out: should the journal lose its end, it is not
        used again. Raises `OSError` if that cannot be written down now.
        """
        if sequence < self.memory.reserved:
            return
        claimed, self.memory.reserved = self.memory.reserved, sequence + _RESERVED
        if not self.save():
            self.memory.reserved = claimed
            raise OSError(f"no event can be numbered while {STATUS} cannot be written")

    def _found(self) -> Memory | None:
        return read(self._folder.read(STATUS)) if self._folder.size(STATUS) is not None else None

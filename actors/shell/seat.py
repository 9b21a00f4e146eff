"""What a process lends the core that sits in it: a clock, a place to keep its state, an ear for its events."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from actors.storage.folder import Folder, checkpoint_name, write_part
from actors.storage.retry import patiently
from raysync.control.placing import slot_of
from raysync.engine.core import Core
from raysync.engine.effects import Effects, KeepPart
from raysync.events import Event, StuckStep


class Seat:
    """A core and what its process lends it; roles that need more have a seat of their own."""

    def __init__(self, core: Core, folder: Folder | None = None) -> None:
        self.core, self._folder = core, folder

    @property
    def now_s(self) -> float:
        """The time the core is told."""
        return time.monotonic()

    @property
    def is_ready(self) -> bool:
        """Whether the core has work of its own to do now."""
        return self.core.is_ready(self.now_s)

    @property
    def idle_s(self) -> float:
        """How long nothing needs to be done for the core, at the most, while nothing arrives."""
        return math.inf

    def work(self) -> Effects:
        """Let the core do the next piece of it."""
        return self.core.work(self.now_s)

    def part_to_write(self, part: KeepPart) -> Callable[[], dict[str, str]]:
        """Return what writes the core's part of a checkpoint, later and on another thread: it returns the files with
        their checksums, or raises `OSError` or `CheckpointError`. What is written is what there is now.
        """
        if self._folder is None:
            return dict
        folder = self._folder.at(checkpoint_name(part.checkpoint))
        address = slot_of(self.core.spec, self.core.address)
        what = f"writing {address}'s part of {folder.uri}"
        return lambda: patiently(lambda: write_part(folder, address, part.state), what)

    def keep_model(self) -> None:
        """Write the final model."""

    def note(self, event: Event) -> None:
        """Take in an event of the core's."""

    def stuck(self) -> StuckStep | None:
        """Return what is to be told, once, of work that takes far too long; asked on another thread than the core's."""
        return None

    def ended(self) -> None:
        """The core acts no more."""

    def acted(self) -> None:
        """The core has acted, and what it said has left."""

"""A job's history as its controller writes it: states with their reasons, the coordinator's events, what must be known
after a restart. All of it goes through storage that may fail for a while.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import msgspec

from actors.job.actor_group import ActorGroup
from actors.job.observed import Observed
from actors.shell.coordinator import Progress
from actors.storage.journal import Journal
from actors.storage.keeper import Keeper
from actors.storage.retry import Backoff, patiently
from raysync.control.clock import JobClock
from raysync.control.controller_memory import Memory
from raysync.control.states import JobState
from raysync.events import AnyEvent, Event, NewReason, StateChange

_TELL_REASON_S = 1.0
"""While a job waits its reason may change with every look; so often it is worth an event."""

logger = logging.getLogger(__name__)


class History:
    """Writes into the journal and the controller's memory."""

    def __init__(self, keeper: Keeper, journal: Journal, group: ActorGroup, observed: Observed) -> None:
        self._keeper, self._journal, self._group, self._observed = keeper, journal, group, observed
        self._clock = JobClock(keeper.memory.started_s, journal.last_s)
        self._told_s = 0.0
        self._journaling = Backoff()

    @property
    def memory(self) -> Memory:
        """What a controller after this one must know."""
        return self._keeper.memory

    @property
    def is_writable(self) -> bool:
        """Whether the journal took what it was last given, or may be tried again."""
        return self._journaling.is_due

    @property
    def last_source(self) -> int:
        """The number of the last event that came from the present coordinator."""
        return self._journal.last_source

    @property
    def now_s(self) -> float:
        """Seconds the job has run."""
        return self._clock.now(time.time())

    def note(self, event: AnyEvent) -> None:
        """Write down what the controller itself has seen."""
        self._journal.note(event, self.now_s)

    def restarted(self) -> None:
        """Another coordinator is about to be started, with a clock of its own."""
        self._clock.restarted()

    def take_in(self, progress: Progress) -> bool:
        """Write down what the coordinator tells; return whether all of it is written. What is not, the coordinator
        holds, and tells again.
        """
        self._clock.answered(progress.now_s, time.time())
        events = [
            msgspec.structs.replace(event, time_s=self._clock.of(event.time_s))
            for event in progress.events
            if event.sequence > self._journal.last_source
        ]
        return not events or self._write(events)

    def flush(self) -> None:
        """Make what is written visible."""
        self._write(())

    def enter(self, state: JobState, reason: str) -> None:
        """Enter a state, or stay in it for another reason."""
        memory = self.memory
        if state is memory.state and reason != memory.reason and time.monotonic() - self._told_s > _TELL_REASON_S:
            self._told_s = time.monotonic()
            self.note(NewReason(state, reason))
        if state is not memory.state:
            logger.info("%s: %s", state.value, reason)
            self.note(StateChange(state, reason, memory.state.value, time.time()))
        memory.state, memory.reason = state, reason
        self.save()

    def save(self) -> None:
        """Write down what a controller after this one must know, and what is left to read when all are gone."""
        memory = self.memory
        memory.step, memory.metrics = self._journal.step, dict(self._journal.latest)
        memory.runs, memory.next_worker = self._observed.of_job(), self._group.next_worker
        self._keeper.save()

    def close(self, state: JobState, reason: str, last_words: Callable[[], None]) -> None:
        """Write down how the job ended, and the log's last lines; a full disk must not keep the job's owner waiting."""
        try:
            self.enter(state, reason)
            self._keeper.insist()
            last_words()
            patiently(self._journal.close, "writing the end of the journal")
        except OSError:
            logger.exception("the end could not be written down")
        finally:
            self.memory.state, self.memory.reason = state, reason

    def _write(self, events: Sequence[Event]) -> bool:
        try:
            if events:
                self._journal.add(*events)
            else:
                self._journal.flush()
            self._journaling.succeeded()
        except OSError as error:
            logger.warning("the journal is written again in %g s: %s", self._journaling.failed(), error)
            return False
        return True

"""The coordinator actor: decides, keeps the clock, seals checkpoints, holds events until the controller has them."""

from __future__ import annotations

import threading
import time
from typing import Any

import msgspec
import ray

from actors.core_actor import CONCURRENCY, CoreActor
from actors.host import Seat
from actors.storage import MANIFEST, Folder, checkpoint_name, part_name, retain, seal, write_part
from raysync import __version__
from raysync.engine import messages as m
from raysync.engine.coordinator import Coordinator
from raysync.errors import NotRunning
from raysync.knobs import Knobs
from raysync.metrics import Event
from raysync.spec import JobSpec

_ADVANCE_EVERY_S = 0.2
_COALESCE_S = 0.25
"""Events are handed over this often: asking costs both sides more than answering."""


class Progress(msgspec.Struct, frozen=True):
    """What the controller learns when it asks."""

    events: list[Event]
    finished: bool
    view: int
    members: tuple[int, ...]
    all_left: bool
    """Everybody who was ever in has said farewell."""
    knobs: Knobs
    next_step: int
    checkpoint: int | None
    """The last checkpoint sealed since this coordinator started."""


class CoordinatorSeat:
    """A coordinator core with a clock, events for whoever asks, and checkpoints to seal."""

    done = False

    def __init__(
        self,
        spec: JobSpec,
        folder: Folder,
        saved: dict[str, Any] | None,
        elapsed_s: float = 0.0,
        is_new_job: bool = False,
    ) -> None:
        self._folder, self._spec = folder, spec
        self._started_s = time.monotonic() - elapsed_s
        self.core = Coordinator(spec, keep=self._keep)
        if saved is not None:
            self.core.load_state_dict(saved)
            if is_new_job and self.core.board.ahead().values["pause"]:
                # It was stopped while it paused, or was about to; nobody resumes a job to wait.
                self.core.board.turn({"pause": False}, None, self.core.next_step)
        self._resumes = saved is not None
        self._advanced_s = 0.0
        self.checkpoint: int | None = None
        self.events: list[Event] = []
        self.finished = False
        """Whether the job has ended and its last events are here."""
        self.news = threading.Condition()

    def handle(self, message: m.Message) -> list[m.Send]:
        """Take in a message."""
        return self._announced(self.core.handle(message, self.now_s))

    def retry(self) -> list[m.Send]:
        """Repeat what was not answered."""
        return self._announced(self.core.retry() + self.core.advance(self.now_s))

    @property
    def is_ready(self) -> bool:
        """Whether a checkpoint waits to be gone on from, or the time budget to be looked at."""
        if self._spec.budget.time_s is None:
            return self._resumes
        return self._resumes or self.now_s - self._advanced_s > _ADVANCE_EVERY_S

    def work(self) -> list[m.Send]:
        """Go on from a checkpoint; watch the time budget."""
        if self._resumes:
            self._resumes = False
            return self.retry()
        self._advanced_s = self.now_s
        return self._announced(self.core.advance(self.now_s))

    def settle(self) -> None:
        """Write the books; whoever waits for events is told of the first, and of the end."""
        events = self.core.take_events()
        if not events and not self.core.finished:
            return
        with self.news:
            is_first = not self.events
            self.events += events
            self.finished = self.core.finished
            if is_first or self.finished:
                self.news.notify_all()

    @property
    def now_s(self) -> float:
        """Seconds the job has run, over all its lives."""
        return time.monotonic() - self._started_s

    def _announced(self, sends: list[m.Send]) -> list[m.Send]:
        if any(isinstance(send.message, m.SnapshotRequest) for send in sends):
            # Parts are about to be written: an older checkpoint of this number exists no more.
            self._folder.at(checkpoint_name(self.core.snapshots.number)).delete_file(MANIFEST)
        return sends

    def _keep(self, snapshot: int, address: str, state: dict[str, Any]) -> None:
        write_part(self._folder.at(checkpoint_name(snapshot)), address, state)
        workers, shards = self.core.view.members, range(self._spec.scale.shards)
        cores = (m.COORDINATOR, *map(m.worker_address, workers), *map(m.shard_address, shards))
        facts = {
            "raysync": __version__,
            "job": self._spec.name,
            "step": self.core.steps_made,
            "round": self.core.round,
            "elapsed_s": self.now_s,
            "workers": list(workers),
            "spec": self.core.spec.model_dump(mode="json"),
        }
        seal(self._folder, snapshot, [*map(part_name, cores), "model.pt"], facts)
        retain(self._folder, self._spec.checkpoint.keep)
        self.checkpoint = snapshot


@ray.remote(concurrency_groups=CONCURRENCY)
class CoordinatorActor(CoreActor):
    """The coordinator in a process of its own; needs no torch."""

    def seats(self) -> dict[str, Seat]:
        """Build the coordinator."""
        saved = self._saved(m.COORDINATOR)
        is_new_job = not (self.assignment.resume or "").startswith(f"{self.assignment.folder}/")
        self._seat = CoordinatorSeat(self.spec, self.folder, saved, self.assignment.elapsed_s, is_new_job)
        self._built.set()
        return {m.COORDINATOR: self._seat}

    @ray.method(concurrency_group="wait")
    def progress(self, after: int, wait_s: float) -> Progress:
        """Return the events after number `after`, waiting for some; those up to `after` are known and forgotten."""
        self._built.wait(30.0)
        seat = self._seat
        with seat.news:
            seat.events = [event for event in seat.events if event.sequence > after]
            seat.news.wait_for(lambda: seat.events or seat.finished, wait_s)
            seat.news.wait_for(lambda: seat.finished, _COALESCE_S)
            finished, events = seat.finished, list(seat.events)
        core = seat.core
        return Progress(
            events,
            finished,
            core.view.number,
            core.view.members,
            core.view.number > 0 and core.membership.all_parted,
            core.knobs,
            core.next_step,
            seat.checkpoint,
        )

    @ray.method(concurrency_group="control")
    def tell(self, message: m.AnyMessage) -> None:
        """Hand the coordinator a word from outside; raises what it answers."""
        if self._host is None:
            raise NotRunning(self.assignment.job, "STARTING", "its coordinator has not begun")
        self._host.tell(m.COORDINATOR, message)

    @ray.method(concurrency_group="control")
    def turn(self, changes: dict[str, Any], expected_version: int | None, dry_run: bool = False) -> Knobs:
        """Turn knobs at the next decision; return them as they will be, raise if they cannot be."""
        host = self._host
        if host is None:
            raise NotRunning(self.assignment.job, "STARTING", "its coordinator has not begun")
        board = self._seat.core.board

        def turned() -> Knobs:
            if dry_run:
                return board.preview(changes, expected_version)
            host.say(m.COORDINATOR, m.Turn(changes=changes, expected_version=expected_version))
            return board.ahead()

        return host.ask(turned)

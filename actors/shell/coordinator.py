"""The coordinator actor: decides, keeps the clock, seals checkpoints, holds events until the controller has them."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import ray

from actors.shell.core_actor import CONCURRENCY, HOSTED_S, CoreActor
from actors.shell.core_loop import CoreLoop
from actors.shell.seat import Seat
from actors.storage.folder import Folder, checkpoint_name, model_names, newest_number, part_name, retain, seal
from actors.storage.retry import LONG_S, patiently
from raysync import __version__
from raysync.address import COORDINATOR, Address
from raysync.control.placing import slot_of
from raysync.engine import messages as m
from raysync.engine.coordinator import Coordinator
from raysync.engine.effects import Cut, KeepPart
from raysync.errors import NotRunning
from raysync.events import Event
from raysync.knobs import Knobs
from raysync.spec import JobSpec

_COALESCE_S = 0.25
"""Events are handed over this often: asking costs both sides more than answering."""
_ASKING_S = 8.0
"""So long whoever turns a knob waits for a coordinator that asks what was turned before."""
_LOOK_S = 0.05

logger = logging.getLogger(__name__)


class Progress(msgspec.Struct, frozen=True):
    """What the controller learns when it asks."""

    events: list[Event]
    finished: bool
    view: int
    members: tuple[Address, ...]
    all_left: bool
    """Every worker that was ever in has said farewell."""
    knobs: Knobs
    """In force."""
    next_step: int
    """How many steps have been decided on."""
    checkpoint: int | None
    """The last checkpoint sealed since this coordinator started."""
    now_s: float
    """What the coordinator's clock says."""
    asked: Knobs
    """As they will be with the next decision."""
    servers: tuple[Address, ...]
    """The shard of each slot."""
    backups: tuple[Address | None, ...]
    """Who follows each."""
    is_asking: bool
    """It takes over from another, and does not know yet what that one knew."""
    covered: tuple[Address, ...] = ()
    """The shards whose backup could take their place now."""


class CoordinatorSeat(Seat):
    """A coordinator core with a clock, events for whoever asks, and checkpoints to seal."""

    core: Coordinator

    def __init__(
        self,
        spec: JobSpec,
        folder: Folder,
        saved: dict[str, Any] | None,
        elapsed_s: float = 0.0,
        is_new_job: bool = False,
        is_followed: bool = False,
    ) -> None:
        super().__init__(Coordinator(COORDINATOR, spec, waits_for_begin=is_followed), folder)
        self._job_folder, self._spec, self._is_followed = folder, spec, is_followed
        self._started_s = time.monotonic() - elapsed_s
        if saved is not None:
            self.core.load_state_dict(saved)
            if is_new_job:
                self.core.begin_anew()
        if is_followed:
            self.core.checkpoints.pass_over(patiently(lambda: newest_number(folder), f"listing {folder.uri}", LONG_S))
        self.checkpoint: int | None = None
        self.events: list[Event] = []
        """What has not been fetched yet."""
        self._fresh: list[Event] = []
        self.asked = self.core.board.ahead()
        """The knobs with all that waits; kept here because the board itself is the host thread's."""
        self.finished = False
        """Whether the job has ended and its last events are here."""
        self.news = threading.Condition()

    def note(self, event: Event) -> None:
        """Hold an event until it is fetched; where no controller fetches, none is held."""
        if self._is_followed:
            self._fresh.append(event)

    def acted(self) -> None:
        """Tell whoever waits for events of the first, and of the end."""
        fresh, self._fresh = self._fresh, []
        self.asked = self.core.board.ahead()
        if not fresh and not self.core.finished:
            return
        with self.news:
            is_first = not self.events
            self.events += fresh
            self.finished = self.core.finished
            if is_first or self.finished:
                self.news.notify_all()

    @property
    def now_s(self) -> float:
        """Seconds the job has run, over all its lives."""
        return time.monotonic() - self._started_s

    @property
    def idle_s(self) -> float:
        """How long it is until a step waits for the late no longer."""
        due_s = self.core.due_s
        return math.inf if due_s is None else max(0.0, due_s - self.now_s)

    def part_to_write(self, part: KeepPart) -> Callable[[], dict[str, str]]:
        """Return what writes the last part of a checkpoint, and makes it exist with that."""
        write, cut = super().part_to_write(part), part.cut
        assert cut is not None
        return lambda: self._seal(part, cut, write())

    def _seal(self, part: KeepPart, cut: Cut, own: dict[str, str]) -> dict[str, str]:
        folder = self._job_folder.at(checkpoint_name(part.checkpoint))
        stages = range(self._spec.scale.stages)
        cores = [slot_of(self._spec, who) for who in (*cut.workers, *cut.servers)]
        parts = [COORDINATOR, *(who.at(stage) for who in cores for stage in stages)]
        files = [*map(part_name, parts), *model_names(self._spec)]
        checksums = {name: found for name, found in {**part.files, **own}.items() if name in files}
        facts = {
            "raysync": __version__,
            "job": self._spec.name,
            "step": cut.step,
            "round": cut.round,
            "elapsed_s": cut.time_s,
            "workers": [worker.index for worker in cut.workers],
            "spec": cut.spec.model_dump(mode="json"),
            "submitted": self._spec.model_dump(mode="json"),
            "checksums": checksums,
        }
        patiently(lambda: seal(self._job_folder, part.checkpoint, files, facts), f"completing {folder.uri}")
        self.checkpoint = part.checkpoint
        try:
            retain(self._job_folder, self._spec.checkpoint.keep)
        except OSError as error:
            logger.warning("older checkpoints are cleared away with the next one: %s", error)
        return own


@ray.remote(concurrency_groups=CONCURRENCY)
class CoordinatorActor(CoreActor):
    """The coordinator in a process of its own; needs no torch."""

    def seats(self) -> dict[Address, Seat]:
        """Build the coordinator."""
        saved = self._saved(COORDINATOR)
        is_new_job = not (self.assignment.resume or "").startswith(f"{self.assignment.folder}/")
        self._seat = CoordinatorSeat(
            self.spec, self.folder, saved, self.assignment.elapsed_s, is_new_job, self.assignment.is_followed
        )
        self._built.set()
        return {COORDINATOR: self._seat}

    @ray.method(concurrency_group="wait")
    def progress(self, after: int, wait_s: float) -> Progress:
        """Return the events after number `after`, waiting for some; those up to `after` are known and forgotten."""
        self._built.wait(30.0)
        seat = self._seat
        with seat.news:
            seat.events = [event for event in seat.events if event.sequence > after]
            seat.news.wait_for(lambda: seat.events or seat.finished, wait_s)
            seat.news.wait_for(lambda: seat.finished, _COALESCE_S)
            core, finished, is_asking = seat.core, seat.finished, seat.core.is_asking
            view, knobs, num_steps, checkpoint = core.view, core.knobs, core.steps_made, seat.checkpoint
            events = list(seat.events)  # last: whoever hears that a knob is in force has all that happened before
        return Progress(
            events,
            finished,
            view.number,
            view.members,
            view.number > 0 and core.membership.all_parted,
            knobs,
            num_steps,
            checkpoint,
            seat.now_s,
            seat.asked,
            view.servers,
            view.backups,
            is_asking,
            core.membership.covered,
        )

    @ray.method(concurrency_group="control")
    def tell(self, message: m.AnyMessage) -> None:
        """Hand the coordinator a word from outside; raises what it answers."""
        self._hosting().tell(COORDINATOR, message)

    @ray.method(concurrency_group="control")
    def turn(self, changes: dict[str, Any], expected_version: int | None, dry_run: bool = False, by: str = "") -> Knobs:
        """Turn knobs at the next decision; return them as they will be, raise if they cannot be."""
        host, board = self._hosting(), self._seat.core.board
        asking_until_s = time.monotonic() + _ASKING_S
        while self._seat.core.is_asking:
            if time.monotonic() > asking_until_s:
                raise NotRunning(self.assignment.job, "RECOVERING", "its coordinator still asks what was decided")
            time.sleep(_LOOK_S)

        def turned() -> Knobs:
            if dry_run:
                return board.preview(changes, expected_version)
            host.say(COORDINATOR, m.Turn(changes=changes, expected_version=expected_version, by=by))
            return board.ahead()

        return host.ask(turned)

    def _hosting(self) -> CoreLoop:
        """Return the host once it runs: whoever asks right after the introduction may be a moment early."""
        if not self._hosted.wait(HOSTED_S) or self._host is None:
            raise NotRunning(self.assignment.job, "STARTING", "its coordinator has not begun")
        return self._host

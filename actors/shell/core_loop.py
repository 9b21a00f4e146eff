"""The loop that runs cores on a link: hand over what arrives, carry out what they ask for, repeat what has no answer.

It is a host like the simulator, under one contract (`raysync.engine.core`). A process may host several cores; what they
say to each other stays in the process.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from actors.errors import PeerLost, UnknownPeer
from actors.link.base import Contact, Link
from actors.link.limited import LimitedLink
from actors.shell.part_writer import PartWriter
from actors.shell.seat import Seat
from raysync.address import Address
from raysync.engine.core import Core, Host
from raysync.engine.effects import Effects, KeepPart, Send
from raysync.engine.messages import Message
from raysync.errors import PayloadError
from raysync.events import Event, StuckStep

T = TypeVar("T")

_IDLE_S = 1.0
_RETRY_S = 10.0
_RETRY_MAX_S = 120.0
_ASK_S = 30.0

logger = logging.getLogger(__name__)


class _Unasked(Future[Any]):
    """Of what the loop does for itself: what is raised then, the loop raises."""


class CoreLoop(Host):
    """Runs the cores of one process until all are done or `stop` is called."""

    def __init__(self, link: Link, seats: Mapping[Address, Seat], now_s: Callable[[], float] = time.monotonic) -> None:
        self._link, self._seats, self._now_s = LimitedLink(link), dict(seats), now_s
        self._questions: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._local: deque[Send] = deque()
        self._writer = PartWriter()
        self._is_passing_on = False
        self._stopping = threading.Event()
        self._retry_s = _RETRY_S
        self._heard_s = now_s()
        self._ended = False

    # Callable from any thread

    def ask(self, question: Callable[[], T], timeout_s: float = _ASK_S) -> T:
        """Run `question` between two messages, in the loop's thread, and return its answer."""
        future: Future[T] = Future()
        self._questions.append((question, future))
        self._link.wake()
        if self._ended:
            self._answer()
        return future.result(timeout_s)

    def tell(self, address: Address, message: Message) -> None:
        """Hand a core a message from outside; raises what the core raises."""
        self.ask(lambda: self.say(address, message))

    def say(self, address: Address, message: Message) -> None:
        """Hand a core a message from within a question."""
        self.give(self._seats[address].core, message)

    def introduce(self, book: Mapping[Address, Contact], gone: tuple[Address, ...] = ()) -> None:
        """Learn where peers are and who has gone; whatever waits for an answer is said again to who is new."""

        def update() -> None:
            self._link.forget(gone)
            self._link.connect(book)
            self._retry_s = 0.0

        self.ask(update)

    def flush(self, timeout_s: float) -> bool:
        """Hand over what is still to be sent, once the loop has ended, for at most so long; return whether it left."""
        return self._link.flush(timeout_s)

    def seat(self, address: Address) -> Seat:
        """Return the seat at an address."""
        return self._seats[address]

    def stuck(self) -> StuckStep | None:
        """Return what is to be told of a step that takes far too long."""
        return next((told for seat in self._seats.values() if (told := seat.stuck()) is not None), None)

    def stop(self) -> None:
        """End the loop."""
        self._stopping.set()
        self._link.wake()

    # The loop

    def run(self) -> None:
        """Run to the end; raises what a core raises."""
        try:
            while not self._stopping.is_set() and not all(seat.core.done for seat in self._seats.values()):
                self.run_once()
        finally:
            self._ended = True
            self._answer()

    def run_once(self) -> None:
        """Answer questions, take in what has arrived or wait for it, or else let a core work that is ready to."""
        if self._questions:
            self._answer()
        is_ready = any(seat.is_ready for seat in self._seats.values())
        idle_s = min(_IDLE_S, *(seat.idle_s for seat in self._seats.values()))
        if not self._deliver(0.0 if is_ready else idle_s) and is_ready:
            for seat in self._seats.values():
                if seat.is_ready:
                    self.act(seat.core, seat.work)
            self._heard_s = self._now_s()  # no peer was listened to meanwhile: silence counts from now on
        self._repeat()

    def _deliver(self, timeout_s: float) -> bool:
        try:
            arrived = self._link.receive(timeout_s)
        except (PeerLost, PayloadError) as error:
            logger.warning("%s", error)
            return False
        for envelope in arrived:
            self._hand(envelope.to, envelope.message)
        if arrived:
            self._heard_s, self._retry_s = self._now_s(), _RETRY_S
        return bool(arrived)

    def _hand(self, to: Address, message: Message) -> None:
        seat = self._seats.get(to)
        if seat is None:
            logger.warning("a message for %s, which is not here", to)
            return
        self.give(seat.core, message)

    def _repeat(self) -> None:
        self._writer.give_up()
        if self._now_s() - self._heard_s < self._retry_s:
            return
        self._heard_s, self._retry_s = self._now_s(), min(_RETRY_MAX_S, max(_RETRY_S, 2 * self._retry_s))
        for seat in self._seats.values():
            self.act(seat.core, lambda seat=seat: seat.core.retry(seat.now_s))  # type: ignore[misc]

    def _answer(self) -> None:
        while self._questions:
            question, future = self._questions.popleft()
            if self._ended and isinstance(future, _Unasked):
                continue
            try:
                future.set_result(question())
            except Exception as error:
                if isinstance(future, _Unasked):
                    raise  # as if a message had come
                future.set_exception(error)

    # The host contract

    def act(self, core: Core, action: Callable[[], Effects]) -> None:
        """Let a core act; then do what no other core waited for, and pass on what cores here said to each other."""
        super().act(core, action)
        self._link.limits(core.spec.transport)
        self.carry_out(core, core.settle())
        self._seats[core.address].acted()
        if self._is_passing_on:
            return
        self._is_passing_on = True  # cores that talk to each other take turns, they do not call each other
        try:
            while self._local:
                send = self._local.popleft()
                self._hand(send.to, send.message)
        finally:
            self._is_passing_on = False

    def clock_s(self, core: Core) -> float:
        """Return the time by the clock of a core's seat."""
        return self._seats[core.address].now_s

    def secure(self, core: Core, effects: Effects) -> None:
        """Promise nothing: cores see to it themselves. A shard is followed by its backup, a coordinator asks; a shard
        without a backup takes its job back to the last checkpoint.
        """

    def send(self, core: Core, send: Send) -> None:
        """Send over the link, or keep for a core in this process."""
        if send.to in self._seats:
            self._local.append(send)
            return
        try:
            self._link.send(send.to, send.message)
        except (PeerLost, UnknownPeer) as error:
            logger.warning("not sent: %s", error)  # a peer that lives asks again; one that is gone is replaced

    def keep_part(self, core: Core, part: KeepPart) -> None:
        """Have a part of a checkpoint written on another thread; the core hears of it between two messages."""
        write = self._seats[core.address].part_to_write(part)
        self._writer.write(
            core.address, part.checkpoint, write, lambda kept: self._later(lambda: self.give(core, kept))
        )

    def _later(self, action: Callable[[], None]) -> None:
        """Do something between two messages, in the loop's thread; callable from any thread."""
        self._questions.append((action, _Unasked()))
        self._link.wake()

    def keep_model(self, core: Core) -> None:
        """Write the final model; raises if that cannot be."""
        self._seats[core.address].keep_model()

    def note(self, core: Core, event: Event) -> None:
        """Hand an event to the core's seat."""
        self._seats[core.address].note(event)

"""The loop that runs cores on a link: hand over what arrives, send what they say, repeat what was not answered.

One process may host several cores (a worker and a shard): what they say to each other never leaves it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from actors.errors import PeerLost, UnknownPeer
from actors.link.base import Contact, Link
from raysync.engine.messages import Message, Send
from raysync.errors import PayloadError

T = TypeVar("T")

_IDLE_S = 1.0
_RETRY_S = 10.0
_RETRY_MAX_S = 120.0
_ASK_S = 30.0

logger = logging.getLogger(__name__)


class Seat(Protocol):
    """A core as the host sees it."""

    def handle(self, message: Message) -> list[Send]:
        """Take in a message."""

    def retry(self) -> list[Send]:
        """Repeat what was not answered."""

    def work(self) -> list[Send]:
        """Do the next piece of work of its own; only when it is ready."""

    def settle(self) -> None:
        """Do what nobody waits for; what it had to say has left."""

    @property
    def is_ready(self) -> bool:
        """Whether it has work of its own to do now."""

    @property
    def done(self) -> bool:
        """Whether it has nothing left to do."""


class Host:
    """Runs the cores of one process until all are done or `stop` is called."""

    def __init__(self, link: Link, seats: Mapping[str, Seat], now_s: Callable[[], float] = time.monotonic) -> None:
        self._link, self._seats, self._now_s = link, dict(seats), now_s
        self._questions: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._local: deque[Send] = deque()
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

    def tell(self, address: str, message: Message) -> None:
        """Hand a core a message from outside; raises what the core raises."""
        self.ask(lambda: self.say(address, message))

    def say(self, address: str, message: Message) -> None:
        """Hand a core a message from within a question."""
        self._give(self._seats[address], message)

    def introduce(self, book: Mapping[str, Contact], gone: tuple[str, ...] = ()) -> None:
        """Learn where peers are and who has gone; whatever waits for an answer is said again to who is new."""

        def update() -> None:
            self._link.forget(gone)
            self._link.connect(book)
            self._retry_s = 0.0

        self.ask(update)

    def seat(self, address: str) -> Seat:
        """Return the core that sits at an address."""
        return self._seats[address]

    def stop(self) -> None:
        """End the loop."""
        self._stopping.set()
        self._link.wake()

    # The loop

    def run(self) -> None:
        """Run to the end; raises what a core raises."""
        try:
            while not self._stopping.is_set() and not all(seat.done for seat in self._seats.values()):
                self.turn()
        finally:
            self._ended = True
            self._answer()

    def turn(self) -> None:
        """Answer questions, take in what has arrived or wait for it, or else let a core work that is ready to."""
        if self._questions:
            self._answer()
        is_ready = any(seat.is_ready for seat in self._seats.values())
        if not self._deliver(0.0 if is_ready else _IDLE_S) and is_ready:
            self._work()
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

    def _hand(self, to: str, message: Message) -> None:
        seat = self._seats.get(to)
        if seat is None:
            logger.warning("a message for %s, which is not here", to)
            return
        self._give(seat, message)

    def _give(self, seat: Seat, message: Message) -> None:
        self._say(seat.handle(message))
        seat.settle()

    def _work(self) -> None:
        for seat in self._seats.values():
            if seat.is_ready:
                self._say(seat.work())
                seat.settle()

    def _say(self, sends: list[Send]) -> None:
        for send in sends:
            if send.to in self._seats:
                self._local.append(send)
                continue
            try:
                self._link.send(send.to, send.message)
            except (PeerLost, UnknownPeer) as error:
                logger.warning("not sent: %s", error)  # a peer that lives asks again; one that is gone is replaced
        if self._is_passing_on:
            return
        self._is_passing_on = True  # cores that talk to each other take turns, they do not call each other
        try:
            while self._local:
                send = self._local.popleft()
                self._hand(send.to, send.message)
        finally:
            self._is_passing_on = False

    def _repeat(self) -> None:
        if self._now_s() - self._heard_s < self._retry_s:
            return
        self._heard_s, self._retry_s = self._now_s(), min(_RETRY_MAX_S, max(_RETRY_S, 2 * self._retry_s))
        for seat in self._seats.values():
            self._say(seat.retry())
            seat.settle()

    def _answer(self) -> None:
        while self._questions:
            question, future = self._questions.popleft()
            try:
                future.set_result(question())
            except Exception as error:
                future.set_exception(error)

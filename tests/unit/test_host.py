"""The loop that runs cores: local messages, questions from other threads, failures."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from actors.host import Host
from actors.link.base import Envelope
from raysync.engine import messages as m


class QuietLink:
    """A link on which nothing ever arrives."""

    kind = "quiet"

    def __init__(self) -> None:
        self.sent: list[tuple[str, m.Message]] = []
        self._woken = threading.Event()

    def connect(self, book: Mapping[str, Any]) -> None: ...

    def forget(self, names: Any) -> None: ...

    def send(self, to: str, message: m.Message) -> None:
        self.sent.append((to, message))

    def receive(self, timeout_s: float) -> list[Envelope]:
        self._woken.wait(min(timeout_s, 0.05))
        self._woken.clear()
        return []

    def wake(self) -> None:
        self._woken.set()

    def probe(self, peers: list[str], timeout_s: float) -> list[str]:
        return peers

    def flush(self, timeout_s: float) -> bool:
        return True

    def close(self, linger_s: float = 0.0) -> None: ...


class Chatter:
    """A core that answers its neighbour until it has spoken often enough."""

    def __init__(self, neighbour: str, limit: int) -> None:
        self._neighbour, self._limit, self.spoken = neighbour, limit, 0
        self.is_ready = neighbour == "b"

    def handle(self, message: m.Message) -> list[m.Send]:
        if self.spoken >= self._limit:
            return []
        self.spoken += 1
        return [m.Send(self._neighbour, m.Goodbye())]

    def retry(self) -> list[m.Send]:
        return []

    def settle(self) -> None:
        pass

    def work(self) -> list[m.Send]:
        self.is_ready = False
        return self.handle(m.Goodbye())

    @property
    def done(self) -> bool:
        return self.spoken >= self._limit


def test_cores_of_one_process_may_talk_as_long_as_they_like() -> None:
    seats = {"a": Chatter("b", 5000), "b": Chatter("a", 5000)}
    link = QuietLink()
    Host(link, seats).run()
    assert [seat.spoken for seat in seats.values()] == [5000, 5000]
    assert link.sent == []


def test_questions_are_answered_between_messages_and_after_the_end() -> None:
    seats = {"a": Chatter("elsewhere", 10)}
    host = Host(QuietLink(), seats)
    thread = threading.Thread(target=host.run)
    thread.start()
    assert host.ask(lambda: seats["a"].spoken, 5.0) == 0
    with pytest.raises(KeyError):
        host.tell("nobody", m.Goodbye())
    host.stop()
    thread.join(5)
    assert host.ask(lambda: "still", 5.0) == "still"

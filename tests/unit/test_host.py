"""The loop that runs cores: local messages, questions from other threads, failures, and the order of the contract."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from actors.link.base import Envelope
from actors.shell.core_loop import CoreLoop
from actors.shell.seat import Seat
from raysync.address import Address, shard, worker
from raysync.engine import messages as m
from raysync.engine.core import Core
from raysync.engine.effects import Effects, KeepModel, KeepPart, Note, Send, Stream
from raysync.errors import CheckpointError
from raysync.events import Event
from tests.jobs import job

HERE, NEIGHBOUR, ELSEWHERE = worker(0), worker(1), shard(7)


class QuietLink:
    """A link on which nothing ever arrives."""

    kind = "quiet"

    def __init__(self) -> None:
        self.sent: list[tuple[Address, m.Message]] = []
        self._woken = threading.Event()

    def connect(self, book: Mapping[Address, Any]) -> None: ...

    def forget(self, names: Any) -> None: ...

    def send(self, to: Address, message: m.Message) -> None:
        self.sent.append((to, message))

    def receive(self, timeout_s: float) -> list[Envelope]:
        self._woken.wait(min(timeout_s, 0.05))
        self._woken.clear()
        return []

    def wake(self) -> None:
        self._woken.set()

    def probe(self, peers: list[Address], timeout_s: float) -> list[Address]:
        return peers

    def flush(self, timeout_s: float) -> bool:
        return True

    def close(self, linger_s: float = 0.0) -> None: ...


class Silent:
    """A core that has nothing to say."""

    done = False
    spec = job()

    def __init__(self, address: Address) -> None:
        self.address = address

    def handle(self, message: m.Message, now_s: float = 0.0) -> Effects:
        return []

    def retry(self, now_s: float = 0.0) -> Effects:
        return []

    def settle(self) -> Effects:
        return []

    def is_ready(self, now_s: float = 0.0) -> bool:
        return False

    def work(self, now_s: float = 0.0) -> Effects:
        return []

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Chatter(Silent):
    """A core that answers its neighbour until it has spoken often enough."""

    def __init__(self, address: Address, neighbour: Address, limit: int) -> None:
        super().__init__(address)
        self._neighbour, self._limit, self.spoken = neighbour, limit, 0
        self._begins = address == HERE and neighbour == NEIGHBOUR

    def is_ready(self, now_s: float = 0.0) -> bool:
        return self._begins

    def handle(self, message: m.Message, now_s: float = 0.0) -> Effects:
        if self.spoken >= self._limit:
            return []
        self.spoken += 1
        return [Send(self._neighbour, m.Goodbye())]

    def work(self, now_s: float = 0.0) -> Effects:
        self._begins = False
        return self.handle(m.Goodbye())

    @property
    def done(self) -> bool:  # type: ignore[override]
        return self.spoken >= self._limit


def test_cores_of_one_process_may_talk_as_long_as_they_like() -> None:
    cores = [Chatter(HERE, NEIGHBOUR, 5000), Chatter(NEIGHBOUR, HERE, 5000)]
    link = QuietLink()
    CoreLoop(link, {core.address: Seat(core) for core in cores}).run()
    assert [core.spoken for core in cores] == [5000, 5000]
    assert link.sent == []


def test_questions_are_answered_between_messages_and_after_the_end() -> None:
    core = Chatter(HERE, ELSEWHERE, 10)
    host = CoreLoop(QuietLink(), {HERE: Seat(core)})
    thread = threading.Thread(target=host.run)
    thread.start()
    assert host.ask(lambda: core.spoken, 5.0) == 0
    with pytest.raises(KeyError):
        host.tell(NEIGHBOUR, m.Goodbye())
    host.stop()
    thread.join(5)
    assert host.ask(lambda: "still", 5.0) == "still"


class Slow(Silent):
    """A core whose step takes longer than the host waits before it repeats itself."""

    def __init__(self, clock: list[float]) -> None:
        super().__init__(HERE)
        self._clock, self.retries, self.steps = clock, 0, 0

    def retry(self, now_s: float = 0.0) -> Effects:
        self.retries += 1
        return []

    def is_ready(self, now_s: float = 0.0) -> bool:
        return self.steps < 3

    def work(self, now_s: float = 0.0) -> Effects:
        self.steps += 1
        self._clock[0] += 15.0
        return [Send(ELSEWHERE, m.Goodbye())]


def test_a_long_step_is_not_taken_for_silence() -> None:
    clock = [0.0]
    core = Slow(clock)
    host = CoreLoop(QuietLink(), {HERE: Seat(core)}, now_s=lambda: clock[0])
    for _ in range(3):
        host.run_once()
    assert (core.steps, core.retries) == (3, 0), "what was said a moment ago is not said again"
    clock[0] += 9.0
    host.run_once()
    assert core.retries == 0
    clock[0] += 2.0
    host.run_once()
    assert core.retries == 1, "ten seconds of real silence are"


EVENT = Event(sequence=0, kind="notice", step=3, data={"text": "hello"})


class Asking(Silent):
    """A core that asks for one of everything."""

    def handle(self, message: m.Message, now_s: float = 0.0) -> Effects:
        match message:
            case m.Goodbye():
                return [KeepPart(4, {"a": 1}), Send(ELSEWHERE, m.Goodbye()), KeepModel()]
            case m.PartKept():
                return [
                    Send(
                        ELSEWHERE,
                        m.CheckpointPart(checkpoint=4, sender=HERE, problem=message.problem, files=message.files),
                    )
                ]
            case m.ModelKept():
                return [Send(ELSEWHERE, m.Farewell(sender=HERE, finished=True, metrics={}, saved=True))]
        return []

    def settle(self) -> Effects:
        return [Note(EVENT)]


class Watched(Seat):
    """A seat that writes down what is asked of it."""

    def __init__(self, core: Core, happened: list[str], problem: Exception | None) -> None:
        super().__init__(core)
        self._happened, self._problem = happened, problem
        self.may_write = threading.Event()

    def part_to_write(self, part: KeepPart) -> Callable[[], dict[str, str]]:
        self._happened.append(f"copies part {part.checkpoint}")

        def write() -> dict[str, str]:
            assert self.may_write.wait(10)
            if self._problem is not None:
                raise self._problem
            return {"a.pt": "x"}

        return write

    def keep_model(self) -> None:
        self._happened.append("keeps the model")

    def note(self, event: Event) -> None:
        self._happened.append(f"notes {event.kind}")


@pytest.mark.parametrize("problem", [None, OSError("no space left"), CheckpointError("here", "is complete")])
def test_what_a_core_knows_is_secured_before_anything_it_says_leaves(problem: Exception | None) -> None:
    happened: list[str] = []

    class Securing(CoreLoop):
        def secure(self, core: Core, effects: Effects) -> None:
            happened.append(f"secures {len(effects)}")

        def send(self, core: Core, send: Send) -> None:
            happened.append(f"sends {type(send.message).__name__}")
            super().send(core, send)

    link = QuietLink()
    seat = Watched(Asking(HERE), happened, problem)
    host = Securing(link, {HERE: seat})
    host.say(HERE, m.Goodbye())
    assert happened == [
        "secures 3",
        "copies part 4",
        "sends Goodbye",
        *("keeps the model", "secures 1", "sends Farewell", "notes notice"),
        "notes notice",
    ], "nobody waits for a part to be written"
    happened.clear()
    seat.may_write.set()
    for _ in range(1000):
        host.run_once()
        if happened:
            break
        time.sleep(0.01)
    assert happened == ["secures 1", "sends CheckpointPart", "notes notice"]
    part = link.sent[-1][1]
    assert isinstance(part, m.CheckpointPart)
    assert part.files == ({} if problem else {"a.pt": "x"})
    assert (part.problem is None) == (problem is None)
    assert part.problem is None or str(problem) == part.problem


class Encoder(Silent):
    """A core whose messages take long to make."""

    def __init__(self, address: Address, made: list[str]) -> None:
        super().__init__(address)
        self._made = made

    def handle(self, message: m.Message, now_s: float = 0.0) -> Effects:
        def encoded() -> Iterator[Send]:
            for number in range(3):
                self._made.append(f"made {number}")
                yield Send(ELSEWHERE, m.NeedInit(block=number))

        return [Stream(encoded()), Send(ELSEWHERE, m.Goodbye())]


def test_the_first_of_a_stream_leaves_before_the_second_is_made() -> None:
    happened: list[str] = []

    class Link(QuietLink):
        def send(self, to: Address, message: m.Message) -> None:
            happened.append(f"sent {getattr(message, 'block', 'the rest')}")

    host = CoreLoop(Link(), {HERE: Seat(Encoder(HERE, happened))})
    host.say(HERE, m.Goodbye())
    assert happened == ["made 0", "sent 0", "made 1", "sent 1", "made 2", "sent 2", "sent the rest"]

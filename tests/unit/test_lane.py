"""The control lane: who may speak on it, what happens to what is being said when a line breaks, and who waits in vain."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from actors.link import lane as lane_module
from actors.link import porch, proof
from actors.link.base import Envelope
from actors.link.lane import ControlLane
from raysync.address import COORDINATOR, Address, worker
from raysync.engine import messages as m
from raysync.errors import PayloadError

KEY = b"k" * 32
A, B = worker(0), worker(1)


@pytest.fixture
def lanes(tmp_path: Path) -> Iterator[Callable[..., ControlLane]]:
    made: list[ControlLane] = []

    def make(name: Address, file: str, key: bytes = KEY) -> ControlLane:
        (tmp_path / file).unlink(missing_ok=True)
        made.append(ControlLane(name, key, tmp_path / file))
        return made[-1]

    yield make
    for lane in made:
        lane.close()


def run(*lanes: ControlLane, until: Callable[[list[Envelope]], bool], timeout_s: float = 3.0) -> list[Envelope]:
    """Let lanes move bytes until that is so, or time is up; return what has arrived."""
    arrived: list[Envelope] = []
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s and not until(arrived):
        for lane in lanes:
            arrived += lane.turn(0.005)[0]
    return arrived


def held(number: int) -> m.Held:
    return m.Held(sender=A, number=number, step=0)


def update(size: int) -> m.Update:
    return m.Update(block=0, round=1, payload_kind="displacement", payload=b"u" * size)


def hung_up(caller: socket.socket, lane: ControlLane) -> bool:
    """Return whether a lane ends a call within its bound."""
    caller.setblocking(False)
    for _ in range(200):
        lane.turn(0.005)
        try:
            if caller.recv(4096) == b"":
                return True
        except BlockingIOError:
            continue
        except ConnectionResetError:
            return True
    return False


def test_what_is_said_before_the_other_end_is_there_arrives_in_order(
    lanes: Callable[..., ControlLane], tmp_path: Path
) -> None:
    caller = lanes(A, "a")
    caller.connect(COORDINATOR, tmp_path / "c")
    for number in range(3):
        caller.send(COORDINATOR, held(number))
    caller.turn(0.0)
    assert caller.waiting == [COORDINATOR]
    coordinator = lanes(COORDINATOR, "c")
    arrived = run(caller, coordinator, until=lambda found: len(found) == 3)
    assert [envelope.message for envelope in arrived] == [held(0), held(1), held(2)]
    assert caller.waiting == []
    assert caller.stuck_s(COORDINATOR, time.monotonic()) == 0


def test_a_message_to_many_reaches_each_under_its_own_name(lanes: Callable[..., ControlLane], tmp_path: Path) -> None:
    coordinator, process = lanes(COORDINATOR, "c"), lanes(A, "a")
    for name in (A, B):
        coordinator.connect(name, tmp_path / "a")
    told = m.Goodbye()
    for name in (A, B):
        coordinator.send(name, told)
    arrived = run(coordinator, process, until=lambda found: len(found) == 2)
    assert sorted(envelope.to for envelope in arrived) == [A, B]


def test_a_peer_that_comes_back_hears_what_was_being_said_from_its_beginning(
    lanes: Callable[..., ControlLane], tmp_path: Path
) -> None:
    """The line breaks in the middle of a frame that is larger than what a socket holds."""
    caller, first = lanes(A, "a"), lanes(COORDINATOR, "c")
    caller.connect(COORDINATOR, tmp_path / "c")
    run(caller, first, until=lambda _: not caller._down)
    caller.send(COORDINATOR, update(900_000))
    assert caller.waiting == [COORDINATOR], "part of it has left"
    assert caller._lines[COORDINATOR].written > 0
    first.close()
    second = lanes(COORDINATOR, "c")
    caller.send(COORDINATOR, held(7))
    arrived = run(caller, second, until=lambda found: len(found) == 2)
    assert [type(envelope.message).__name__ for envelope in arrived] == ["Update", "Held"]
    assert bytes(arrived[0].message.payload) == b"u" * 900_000


def test_what_a_silent_peer_does_not_take_can_be_dropped(lanes: Callable[..., ControlLane], tmp_path: Path) -> None:
    caller, coordinator = lanes(A, "a"), lanes(COORDINATOR, "c")
    caller.connect(COORDINATOR, tmp_path / "c")
    run(caller, coordinator, until=lambda _: not caller._down)
    for _ in range(3):
        caller.send(COORDINATOR, update(900_000))
    assert caller.stuck_s(COORDINATOR, time.monotonic() + 1) > 1
    caller.drop(COORDINATOR)
    caller.send(COORDINATOR, held(1))
    arrived = run(caller, coordinator, until=lambda found: len(found) == 2)
    assert [type(envelope.message).__name__ for envelope in arrived] == ["Update", "Held"], "what had begun is ended"


def test_a_line_opens_while_the_other_end_computes(lanes: Callable[..., ControlLane], tmp_path: Path) -> None:
    """What is sent leaves, though the core that it is for takes no turn."""
    caller, busy = lanes(A, "a"), lanes(COORDINATOR, "c")
    caller.connect(COORDINATOR, tmp_path / "c")
    caller.send(COORDINATOR, held(1))
    run(caller, until=lambda _: not caller.waiting)
    assert caller.waiting == []
    assert [envelope.message for envelope in run(busy, until=bool)] == [held(1)]


def test_an_overheard_proof_opens_no_second_line(lanes: Callable[..., ControlLane], tmp_path: Path) -> None:
    """The challenge is another one each time."""
    caller, coordinator = lanes(A, "a"), lanes(COORDINATOR, "c")
    caller.connect(COORDINATOR, tmp_path / "c")
    run(caller, coordinator, until=lambda _: not caller._down)
    overheard = caller._lines[COORDINATOR]
    answer = proof.proof(KEY, b"caller", overheard.heard[:32], overheard.challenge)
    assert proof.is_proof(answer, KEY, b"caller", overheard.heard[:32], overheard.challenge)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as thief:
        thief.connect(str(tmp_path / "c"))
        thief.send(overheard.challenge + answer)
        assert hung_up(thief, coordinator)


def test_a_listener_without_the_key_is_told_nothing(lanes: Callable[..., ControlLane], tmp_path: Path) -> None:
    caller = lanes(A, "a")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as impostor:
        impostor.bind(str(tmp_path / "c"))
        impostor.listen()
        impostor.settimeout(2.0)
        caller.connect(COORDINATOR, tmp_path / "c")
        caller.send(COORDINATOR, held(1))
        line, _ = impostor.accept()
        with line:
            line.settimeout(2.0)
            line.send(b"c" * 32)
            run(caller, until=lambda _: bool(caller._lines[COORDINATOR].challenge))
            line.send(proof.proof(b"x" * 32, b"listener", b"c" * 32, line.recv(4096)[:32]))
            run(caller, until=lambda _: caller._lines[COORDINATOR].socket is None)
            assert line.recv(4096) == b"", "it hangs up"
    assert caller.waiting == [COORDINATOR]
    assert caller._down == {COORDINATOR}


def test_who_proves_nothing_is_hung_up_on(
    lanes: Callable[..., ControlLane], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(porch, "_PROVE_S", 0.05)
    monkeypatch.setattr(porch, "_LOOK_S", 0.02)
    coordinator = lanes(COORDINATOR, "c")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as mute:
        mute.connect(str(tmp_path / "c"))
        assert hung_up(mute, coordinator)


def test_frames_no_sender_of_ours_writes_end_the_line(lanes: Callable[..., ControlLane], tmp_path: Path) -> None:
    caller, coordinator = lanes(A, "a"), lanes(COORDINATOR, "c")
    caller.connect(COORDINATOR, tmp_path / "c")
    run(caller, coordinator, until=lambda _: not caller._down)
    line = caller._lines[COORDINATOR].socket
    assert line is not None
    line.send(lane_module._SIZES.pack(1 << 31, 0))
    with pytest.raises(PayloadError, match="on the control lane"):
        run(coordinator, until=lambda found: bool(found), timeout_s=1.0)
    caller.send(COORDINATOR, held(1))  # may be lost with the line, as on any other
    caller.send(COORDINATOR, held(2))
    arrived = run(caller, coordinator, until=lambda found: bool(found) and found[-1].message == held(2))
    assert arrived[-1].message == held(2), "and the next call is heard"


def test_a_frame_that_comes_in_crumbs_is_whole(lanes: Callable[..., ControlLane], tmp_path: Path) -> None:
    caller, coordinator = lanes(A, "a"), lanes(COORDINATOR, "c")
    caller.connect(COORDINATOR, tmp_path / "c")
    run(caller, coordinator, until=lambda _: not caller._down)
    line = caller._lines[COORDINATOR].socket
    assert line is not None
    packet = lane_module._packed(lane_module.whole_head(A, COORDINATOR, lane_module.encoded(held(5))), b"")
    arrived: list[Envelope] = []
    for at in range(len(packet)):
        line.send(packet[at : at + 1])
        arrived += coordinator.turn(0.05)[0]
    assert [envelope.message for envelope in arrived] == [held(5)]

"""The control lane of a direct link: what a coordinator and those it decides for say to each other on one machine.

A decision is some hundred bytes for which every worker waits. Here they go through a plain socket in the file system
that the core's own thread reads and writes: ZeroMQ's detour through two threads of its own costs each way more than
all the rest. Both ends prove that they hold the job's key (HMAC over each other's random challenge) before a byte of a
message is taken; nothing is encrypted, since nothing leaves the machine.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from actors.link import proof
from actors.link.base import Envelope
from actors.link.frames import PART_BYTES, Assembler, Buffer, encoded, to_frames, whole_head
from actors.link.porch import Porch
from raysync.address import Address
from raysync.engine.messages import Message
from raysync.errors import PayloadError

_SIZES = struct.Struct("<II")
"""Before every frame: how long its head and its body are."""
_HEAD_BYTES = 16 << 20
_READ_BYTES = 1 << 18
_AGAIN_S, _AGAIN_MAX_S = 0.05, 1.0
_ANSWER_MS = 20
"""So long a dialler waits for each word of a peer that should answer at once."""


class ControlLane:
    """Lines of one process: those it has dialled, to send; and those others have, to read."""

    def __init__(self, name: Address, key: bytes, path: Path) -> None:
        self._name, self._key = name, key
        self._epoll = select.epoll()
        self._assembler = Assembler()
        self._lines: dict[Address, _Line] = {}
        self._by_fd: dict[int, _Line | _Caller] = {}
        self._down: set[Address] = set()
        """Whose lines are not open."""
        self._watched: set[int] = set()
        self._arrived: list[Envelope] = []
        self._last: tuple[Message | None, bytes] = (None, b"")
        """The last message sent, and its bytes."""
        self._porch = Porch(path, key, self._let_in)

    def fileno(self) -> int:
        """Readable whenever `turn` has something to do."""
        return self._epoll.fileno()

    def watch(self, fd: int) -> None:
        """Let `turn` also tell when something else can be read: whoever waits, waits once."""
        self._watched.add(fd)
        self._epoll.register(fd, select.EPOLLIN)

    # Lines

    def connect(self, name: Address, path: Path) -> None:
        """Dial a peer; until it has proved itself, what is sent to it waits."""
        self.forget(name)
        self._lines[name] = _Line(name, str(path))
        self._down.add(name)
        self._tend()

    def forget(self, name: Address) -> None:
        """Hang up."""
        line = self._lines.pop(name, None)
        self._down.discard(name)
        if line is not None:
            self._hang_up(line)

    def carries(self, name: Address) -> bool:
        """Return whether a peer is reached over this lane."""
        return name in self._lines

    @property
    def waiting(self) -> list[Address]:
        """Who has not taken all that was sent."""
        return [name for name, line in self._lines.items() if line.outbox]

    def waiting_bytes(self, name: Address) -> int:
        """Return how much waits for a peer."""
        return self._lines[name].outbox_bytes

    def stuck_s(self, name: Address, now_s: float) -> float:
        """Return for how long a peer has taken nothing of what waits for it."""
        since_s = self._lines[name].stuck_since_s
        return 0.0 if since_s is None else now_s - since_s

    def drop(self, name: Address) -> None:
        """Forget what waits for a peer; of a frame that has left in part, the rest still goes."""
        self._lines[name].drop()

    # Moving bytes

    def send(self, to: Address, message: Message) -> None:
        """Send now, or as soon as the peer takes it."""
        line = self._lines[to]
        if getattr(message, "payload", None):
            packets = [_packed(*frame) for frame in to_frames(self._name, to, message)]
        else:
            packets = [_packed(whole_head(self._name, to, self._once(message)), b"")]
        if line.is_open and not line.outbox and len(packets) == 1 and self._has_left(line, packets[0]):
            return
        line.outbox.extend(packets)
        line.outbox_bytes += sum(map(len, packets))
        if line.is_open:
            self._write(line)
        elif line.stuck_since_s is None:
            line.stuck_since_s = time.monotonic()

    def _has_left(self, line: _Line, packet: bytes) -> bool:
        """Write a packet in one go, as nearly all are; return whether no byte of it is left to be written."""
        assert line.socket is not None
        try:
            line.written = line.socket.send(packet)
        except OSError:
            return False
        if line.written < len(packet):
            return False
        line.written = 0
        return True

    def _once(self, message: Message) -> bytes:
        """Return a message as bytes: a decision goes to many, one after the other."""
        if self._last[0] is not message:
            self._last = message, encoded(message)
        return self._last[1]

    def turn(self, timeout_s: float) -> tuple[list[Envelope], set[int]]:
        """Wait for anything to move and move what can be moved; return what has arrived, and what else of what is
        watched can be read.
        """
        if self._down:
            timeout_s = min(timeout_s, self._tend())
        moved = set()
        for fd, event in self._epoll.poll(timeout_s):
            if fd in self._watched:
                moved.add(fd)
                continue
            match self._by_fd.get(fd):
                case _Caller() as caller:
                    self._read(caller)
                case _Line() as line if not line.is_open:
                    self._prove(line)
                case _Line() as line if event & ~select.EPOLLOUT:
                    self._went_down(line)  # nothing is said on it: that is the end
                case _Line() as line:
                    self._write(line)
        arrived, self._arrived = self._arrived, []
        return arrived, moved

    def _tend(self) -> float:
        """Dial again who could not be reached, where that is due; return in how many seconds the next is due."""
        now_s = time.monotonic()
        for name in [*self._down]:
            line = self._lines[name]
            if line.socket is None and now_s >= line.again_s:
                self._dial(line)
        waits_s = [line.again_s - now_s for line in map(self._lines.__getitem__, self._down) if line.socket is None]
        return max(0.0, min(waits_s, default=_AGAIN_MAX_S))

    def close(self) -> None:
        """Free the sockets; what has been written can still be read by who has it."""
        self._porch.close()
        for end in [*self._by_fd.values()]:
            self._hang_up(end)
        self._epoll.close()

    # Lines dialled here

    def _dial(self, line: _Line) -> None:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.setblocking(False)
        try:
            made.connect(line.path)
        except OSError:
            made.close()
            self._try_again(line)
            return
        line.socket = made
        self._watch(line, made)
        answers = select.poll()
        answers.register(made, select.POLLIN)
        for _ in range(2):  # the peer's porch answers at once; else the proving goes on when it does
            if line.socket is made and not line.is_open and answers.poll(_ANSWER_MS):
                self._prove(line)

    def _prove(self, line: _Line) -> None:
        """Answer the peer's challenge with one of our own; once that is answered, the line is open."""
        assert line.socket is not None
        heard = proof.received(line.socket, proof.CHALLENGE_BYTES + proof.PROOF_BYTES - len(line.heard))
        if heard is None:
            return
        line.heard += heard
        theirs, given = line.heard[: proof.CHALLENGE_BYTES], line.heard[proof.CHALLENGE_BYTES :]
        is_there = bool(heard)
        if is_there and not line.challenge and len(theirs) == proof.CHALLENGE_BYTES:
            line.challenge = proof.challenge()
            ours = proof.proof(self._key, b"caller", theirs, line.challenge)
            is_there = proof.sent(line.socket, line.challenge + ours)
        if is_there and len(given) == proof.PROOF_BYTES:
            is_there = proof.is_proof(given, self._key, b"listener", theirs, line.challenge)
            if is_there:
                self._opened(line)
        if not is_there:
            self._went_down(line)

    def _opened(self, line: _Line) -> None:
        line.is_open, line.stuck_since_s, line.wait_s = True, None, _AGAIN_S
        self._down.discard(line.name)
        self._write(line)

    def _write(self, line: _Line) -> None:
        """Write as much as the peer takes; wait for room only while there is something to write."""
        assert line.socket is not None
        try:
            while line.outbox:
                line.written += line.socket.send(memoryview(line.outbox[0])[line.written :])
                line.stuck_since_s = None
                if line.written == len(line.outbox[0]):
                    line.outbox_bytes -= line.written
                    line.outbox.popleft()
                    line.written = 0
        except BlockingIOError:
            line.stuck_since_s = line.stuck_since_s or time.monotonic()
        except OSError:
            self._went_down(line)
            return
        if bool(line.outbox) != line.waits_for_room:
            line.waits_for_room = not line.waits_for_room
            room = select.EPOLLOUT if line.waits_for_room else 0
            self._epoll.modify(line.socket, select.EPOLLIN | room)

    def _went_down(self, line: _Line) -> None:
        """The peer is gone or is none of ours: what waits, and a frame that left in part, wait for the next call."""
        self._hang_up(line)
        self._down.add(line.name)
        self._try_again(line)

    def _try_again(self, line: _Line) -> None:
        now_s = time.monotonic()
        line.again_s, line.wait_s = now_s + line.wait_s, min(_AGAIN_MAX_S, 2 * line.wait_s)
        if line.outbox and line.stuck_since_s is None:
            line.stuck_since_s = now_s

    # Lines others have dialled

    def _let_in(self, made: socket.socket) -> None:
        """Listen to a caller that has proved itself; called by the porch's thread."""
        self._watch(_Caller(made), made)

    def _read(self, caller: _Caller) -> None:
        assert caller.socket is not None
        data = proof.received(caller.socket, _READ_BYTES)
        if data is None:
            return
        if not data:
            self._hang_up(caller)
            return
        caller.heard = caller.heard + data if caller.heard else data
        try:
            for head, body in caller.frames():
                envelope = self._assembler.feed(head, body)
                if envelope is not None:
                    self._arrived.append(envelope)
        except PayloadError:
            self._hang_up(caller)
            raise

    # Both

    def _watch(self, end: _Line | _Caller, made: socket.socket) -> None:
        self._by_fd[made.fileno()] = end
        self._epoll.register(made, select.EPOLLIN)

    def _hang_up(self, end: _Line | _Caller) -> None:
        if end.socket is not None:
            del self._by_fd[end.socket.fileno()]
            self._epoll.unregister(end.socket)
            end.socket.close()
        end.hung_up()


class _Line:
    """A line dialled here: what waits for the peer, and how far the proving has got."""

    def __init__(self, name: Address, path: str) -> None:
        self.name, self.path = name, path
        self.socket: socket.socket | None = None
        self.outbox: deque[bytes] = deque()
        self.outbox_bytes = 0
        self.again_s, self.wait_s = 0.0, _AGAIN_S
        self.stuck_since_s: float | None = None
        self.hung_up()

    def hung_up(self) -> None:
        """There is no connection: the next begins anew, with the frame this one broke off in."""
        self.socket, self.is_open, self.waits_for_room = None, False, False
        self.heard = self.challenge = b""
        self.written = 0
        """How much of the first frame in the outbox has left."""

    def drop(self) -> None:
        """Keep only what has left in part."""
        begun = [self.outbox[0]] if self.written else []
        self.outbox = deque(begun)
        self.outbox_bytes, self.stuck_since_s = sum(map(len, begun)), None


class _Caller:
    """A line somebody else has dialled: what has come of the next frame."""

    def __init__(self, made: socket.socket) -> None:
        self.socket: socket.socket | None = made
        self.heard = b""

    def hung_up(self) -> None:
        """There is no connection, and none will come."""
        self.socket, self.heard = None, b""

    def frames(self) -> Iterator[tuple[memoryview, memoryview]]:
        """Yield the frames that are complete."""
        view, at = memoryview(self.heard), 0
        while len(view) - at >= _SIZES.size:
            head, body = _SIZES.unpack_from(view, at)
            if head > _HEAD_BYTES or body > PART_BYTES:
                raise PayloadError(f"a frame of {head} and {body} bytes on the control lane")
            start, stop = at + _SIZES.size, at + _SIZES.size + head + body
            if len(view) < stop:
                break
            yield view[start : start + head], view[start + head : stop]
            at = stop
        self.heard = self.heard[at:]


def _packed(head: Buffer, body: Buffer) -> bytes:
    return b"".join((_SIZES.pack(len(head), len(body)), head, body))

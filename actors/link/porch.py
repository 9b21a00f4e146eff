"""Answers who calls on the control lane, on a thread of its own: a line opens also while the core computes. Whoever has
proved to hold the job's key is let in; the core's thread does the rest.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from actors.link import proof

_PROVE_S = 20.0
"""Who has called and proved nothing for so long is hung up on."""
_LOOK_S = 5.0


class _Caller:
    """A call, and how far the proving has got."""

    def __init__(self, made: socket.socket, now_s: float) -> None:
        self.socket, self.since_s = made, now_s
        self.challenge, self.heard = proof.challenge(), b""


class Porch:
    """Listens in the file system; `let_in` is given the socket of each caller that has proved itself."""

    def __init__(self, path: Path, key: bytes, let_in: Callable[[socket.socket], None]) -> None:
        self._key, self._let_in = key, let_in
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.setblocking(False)
        self._listener.bind(str(path))
        self._listener.listen(4096)
        self._callers: dict[int, _Caller] = {}
        self._end = os.eventfd(0)
        self._epoll = select.epoll()
        for fd in (self._listener.fileno(), self._end):
            self._epoll.register(fd, select.EPOLLIN)
        self._thread = threading.Thread(target=self._run, name="porch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer no more calls; may be said twice."""
        if not self._thread.is_alive():
            return
        os.eventfd_write(self._end, 1)
        self._thread.join()
        for caller in [*self._callers.values()]:
            self._hang_up(caller)
        self._listener.close()
        self._epoll.close()
        os.close(self._end)

    def _run(self) -> None:
        while True:
            found = [fd for fd, _ in self._epoll.poll(_LOOK_S if self._callers else -1)]
            if self._end in found:
                return
            for fd in found:
                if fd == self._listener.fileno():
                    self._answer()
                elif fd in self._callers:
                    self._hear(self._callers[fd])
            self._hang_up_on_mutes()

    def _answer(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while True:
                made, _ = self._listener.accept()
                made.setblocking(False)
                caller = self._callers[made.fileno()] = _Caller(made, time.monotonic())
                self._epoll.register(made, select.EPOLLIN)
                if not proof.sent(made, caller.challenge):
                    self._hang_up(caller)

    def _hear(self, caller: _Caller) -> None:
        """Check a caller's proof once all of it is here; give it ours, and let it in."""
        wanted = proof.CHALLENGE_BYTES + proof.PROOF_BYTES
        data = proof.received(caller.socket, wanted - len(caller.heard))
        if data is None:
            return
        caller.heard += data
        if data and len(caller.heard) < wanted:
            return
        theirs, given = caller.heard[: proof.CHALLENGE_BYTES], caller.heard[proof.CHALLENGE_BYTES :]
        if not data or not proof.is_proof(given, self._key, b"caller", caller.challenge, theirs):
            self._hang_up(caller)
            return
        self._forget(caller)
        self._let_in(caller.socket)
        proof.sent(caller.socket, proof.proof(self._key, b"listener", caller.challenge, theirs))

    def _hang_up_on_mutes(self) -> None:
        latest_s = time.monotonic() - _PROVE_S
        for caller in [one for one in self._callers.values() if one.since_s < latest_s]:
            self._hang_up(caller)

    def _hang_up(self, caller: _Caller) -> None:
        self._forget(caller)
        caller.socket.close()

    def _forget(self, caller: _Caller) -> None:
        del self._callers[caller.socket.fileno()]
        self._epoll.unregister(caller.socket)

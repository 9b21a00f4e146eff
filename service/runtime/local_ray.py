"""A Ray of the service's own, for a machine that has none: one node, behind a token, that outlives the service.

It is started as `ray start --head --block` in a session of its own, so a service that is killed leaves its jobs
running; the next one finds the node by what this one wrote down. It is ended by its own process id.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from raysync.errors import RuntimeLost
from service.runtime.processes import born
from service.security.scrubbing import scrubbed

_UP_S = 90.0
_DRAIN_S = 2.0
"""Asked kindly, a node drains for half a minute, though nothing runs on it."""
_DOWN_S = 10.0
_STARTED = "Ray runtime started"


class _Node(NamedTuple):
    pid: int
    born: str
    """When the process started, in the kernel's ticks: a number may be given to another process later."""
    address: str


class EmbeddedRay:
    """One Ray node, kept under a folder."""

    def __init__(
        self,
        folder: Path,
        env: Mapping[str, str],
        num_cpus: int,
        pass_env: Collection[str] = (),
        is_warm: bool = False,
    ) -> None:
        self._folder, self._num_cpus, self._is_warm = folder, num_cpus, is_warm
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._is_ending = threading.Event()
        self.env = {
            **{name: value for name, value in scrubbed(env, pass_env).items() if name != "RAY_ADDRESS"},
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self._token()),
            "RAY_USAGE_STATS_ENABLED": "0",
            # Its processes may wait for a job with their imports done: see actors/preload.py.
            "RAY_preload_python_modules": "actors.preload",
            "WARMING_FILE": str(self._warming),
        }
        """What a process that joins the node needs in the environment, and nothing jobs should not see."""

    @property
    def name(self) -> str:
        """What the node is known by, however often it is started anew: it is this folder's."""
        path = self._folder / "name"
        if not path.exists():
            path.write_text(f"own-ray-{secrets.token_hex(8)}")
        return path.read_text().strip()

    @property
    def is_up(self) -> bool:
        """Whether the node runs."""
        return self._find() is not None

    def address(self) -> str:
        """Return the node's address, starting it if it does not run."""
        with self._locked():
            node = self._find()
            return node.address if node is not None else self._start().address

    def give_up(self) -> None:
        """Wait no longer for a node that is still coming up: it does not come up."""
        self._is_ending.set()

    def end(self) -> None:
        """End the node, and with it every job on it."""
        self.give_up()
        with self._locked():
            self._end()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _end(self) -> None:
        node = self._find()
        if node is None:
            return
        for sent, wait_s in ((signal.SIGTERM, _DRAIN_S), (signal.SIGKILL, _DOWN_S)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(node.pid, sent)
            deadline_s = time.monotonic() + wait_s
            while self._find() is not None and time.monotonic() < deadline_s:
                _reap(node.pid)
                time.sleep(0.05)
            if self._find() is None:
                break
        with contextlib.suppress(ProcessLookupError):
            os.killpg(node.pid, signal.SIGKILL)  # whatever of its session is left
        self._record.unlink(missing_ok=True)

    @property
    def _warming(self) -> Path:
        """A file that is there while processes are started that are to wait."""
        return self._folder / "warming"

    @property
    def _record(self) -> Path:
        return self._folder / "node.json"

    def _token(self) -> Path:
        path = self._folder / "token"
        if not path.exists():
            path.touch(mode=0o600)
            path.write_text(secrets.token_hex(32))
        return path

    def _find(self) -> _Node | None:
        try:
            node = _Node(**json.loads(self._record.read_text()))
        except (OSError, ValueError, TypeError):
            return None
        _reap(node.pid)
        return node if born(node.pid) == node.born else None

    def _start(self) -> _Node:
        if self._is_ending.is_set():
            raise RuntimeLost("its service is ending")
        address = f"127.0.0.1:{_free_port()}"
        log = self._folder / "node.log"
        command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"),
            *("--node-ip-address=127.0.0.1", f"--port={address.rpartition(':')[2]}", "--include-dashboard=false"),
            f"--num-cpus={self._num_cpus}",
            # Nodes are not scaled here, and logs not read through Ray: jobs bring their own.
            *("--no-monitor", "--include-log-monitor=false"),
        ]
        self._warming.unlink(missing_ok=True)
        if self._is_warm:
            self._warming.touch()  # Ray starts some at once
        with log.open("wb") as file:
            process = subprocess.Popen(
                command,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        node = _Node(process.pid, born(process.pid) or "", address)
        written = self._record.with_suffix(".part")
        written.write_text(json.dumps(node._asdict()))
        written.replace(self._record)
        deadline_s = time.monotonic() + _UP_S
        while _STARTED not in log.read_text(errors="replace"):
            if process.poll() is not None or time.monotonic() > deadline_s or self._is_ending.is_set():
                self._end()
                process.poll()
                last = log.read_text(errors="replace").strip().splitlines()[-1:]
                raise RuntimeLost(f"a local Ray did not come up ({' '.join(last) or 'it said nothing'}); see {log}")
            time.sleep(0.1)
        return node


def _reap(pid: int) -> None:
    """Let go of a child that has ended; another process's is left alone."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

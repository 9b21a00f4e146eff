"""Ray nodes as children of a test or benchmark: `ray start --block`, one after the other, ended by their own ids."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

BIN = Path(sys.executable).parent
_UP_S = 90.0


class Nodes:
    """Started nodes; each leads a session of its own, so that all its processes end with it."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self._folder, self.env = folder, dict(env)
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str, inside: Sequence[str] = ()) -> None:
        """Start a node and wait until it is up: nodes of one machine that start together can miss each other."""
        log = self._folder / f"node-{len(self._processes)}.log"
        command = [*inside, str(BIN / "ray"), "start", "--block", "--object-store-memory=100000000", *arguments]
        with log.open("wb") as file:
            process = subprocess.Popen(command, env=self.env, stdout=file, stderr=file, start_new_session=True)
        self._processes.append(process)
        deadline_s = time.monotonic() + _UP_S
        while "Ray runtime started" not in log.read_text():
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"a Ray node did not come up:\n{log.read_text()}")
            time.sleep(0.2)

    @property
    def last(self) -> int | None:
        """The process group of the node started last; None if there is none."""
        return self._processes[-1].pid if self._processes else None

    def forget(self) -> None:
        """Take leave of the node started last: all its processes were killed."""
        self._processes.pop().wait(30)

    def strike(self, kind: signal.Signals, number: int = -1) -> None:
        """Send a signal to all processes of a node, the last one started by default."""
        os.killpg(self._processes[number].pid, kind)

    def tell_to_go(self, number: int = -1) -> None:
        """Ask a node to end, as a machine does that is about to be taken away."""
        self._processes[number].terminate()

    def end(self) -> None:
        """End them at once; asked kindly, a node drains for half a minute."""
        for process in reversed(self._processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)


def token_env(home: Path) -> dict[str, str]:
    """Return an environment whose `~/.ray` holds a fresh token, as Ray asks of every node of a cluster."""
    home.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "RAY_AUTH_MODE": "token", "HOME": str(home)}
    for name in ("RAY_ADDRESS", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        env.pop(name, None)
    subprocess.run([BIN / "ray", "get-auth-token", "--generate"], env=env, check=True, capture_output=True, timeout=60)
    return env

"""`raysync serve` as a child of a test or benchmark: started, killed, started again, and its Ray ended with it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
from click.testing import Result
from typer.testing import CliRunner

from service.cli import app
from service.client import Client
from service.runtime.local_ray import EmbeddedRay

BIN = Path(sys.executable).parent


class Service:
    """A service of its own: data, jobs, Ray and token in one folder; no warm processes unless they are asked for, since
    they cost every start of a service more than a few jobs gain.
    """

    def __init__(self, folder: Path, *options: str, num_cpus: int = 16, warm: int = 0) -> None:
        self.folder, self._options = folder, options
        self.folder.mkdir(parents=True, exist_ok=True)
        self.sockets = Path(tempfile.mkdtemp(prefix="rs-"))
        """Where actors put their sockets; short, since paths of sockets may have 107 characters."""
        self.env = {
            **{name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"},
            "TMPDIR": str(self.sockets),
            "RAYSYNC_DATA": str(folder / "data"),
            "RAYSYNC_STORAGE": str(folder / "jobs"),
            "RAYSYNC_PORT": str(_free_port()),
            "RAYSYNC_NUM_CPUS": str(num_cpus),
            "RAYSYNC_WARM": str(warm),
            "COLUMNS": "140",
            "PYTHONPATH": str(Path(__file__).parents[1]),  # for tasks of the tests
        }
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.env['RAYSYNC_PORT']}"

    @property
    def ray(self) -> EmbeddedRay:
        """The Ray it started."""
        return EmbeddedRay(self.folder / "data" / "ray", self.env, 1)

    @property
    def log(self) -> str:
        """What it has printed."""
        return (self.folder / "serve.log").read_text()

    def start(self, ready: bool = True) -> Client:
        """Start it; return a client with the first token."""
        with (self.folder / "serve.log").open("ab") as log:
            self.process = subprocess.Popen(
                [BIN / "raysync", "serve", *self._options], env=self.env, stdout=log, stderr=log
            )
        note = self.folder / "data" / "client.json"
        until(lambda: self._answers(), 30, self._died)
        client = Client(self.url, json.loads(note.read_text())["token"])
        if ready:
            until(lambda: self._is_ready(), 90, self._died)
        return client

    def kill(self) -> None:
        """End it as a power cut would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)

    def interrupt(self) -> None:
        """End it with Ctrl-C."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)

    def close(self) -> None:
        """End everything, whatever state it is in."""
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.interrupt()
            self.process.kill()
            self.process.wait(10)
        self.ray.end()
        shutil.rmtree(self.sockets, ignore_errors=True)

    def cli(self, *arguments: object) -> Result:
        """Run a command of the command line against it, in this process."""
        return CliRunner().invoke(app, [str(argument) for argument in arguments], env=self.env)

    def _answers(self) -> bool:
        return self._says_yes("healthz")

    def _is_ready(self) -> bool:
        return self._says_yes("readyz")

    def _says_yes(self, path: str) -> bool:
        with contextlib.suppress(httpx2.TransportError):
            return bool(httpx2.get(f"{self.url}/{path}").status_code == 200)
        return False

    def _died(self) -> str:
        return self.log if self.process is not None and self.process.poll() is not None else ""


def until(condition: Callable[[], Any], timeout_s: float = 60.0, problem: Callable[[], str] = str) -> None:
    """Wait for something to become true; fail at once if there is a problem."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert not problem(), problem()
        assert time.monotonic() < deadline_s, "it did not come true in time"
        time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

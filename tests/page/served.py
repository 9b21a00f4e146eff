"""The service around a still runtime, on a real port, for a browser: started, stopped and started again with its books."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import uvicorn

from raysync.events import Event
from service.http.deps import Parts
from service.server.serve import server_config
from service.server.wiring import assemble
from service.store import Store
from tests.service.conftest import TALKS, settings_for, tokens_for
from tests.service.still_runtime import StillRuntime

SPEC: dict[str, Any] = {
    "name": "still",
    "task": {"kind": "digits"},
    "strategy": {"kind": "selsync", "delta": 0.3},
    "scale": {"workers": 2, "max_workers": 4},
    "budget": {"steps": 1000},
    "labels": {"team": "vision"},
}


class PacedRuntime(StillRuntime):
    """A still runtime whose events may have a time of their own, and whose turns take effect at the step it has reached."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: dict[str, int] = {}

    def tell(
        self,
        job: str,
        kind: str,
        data: dict[str, Any],
        step: int = 0,
        knob_version: int = 0,
        worker: int | None = None,
    ) -> None:
        """Let a job tell something, a tenth of a second after what it told before."""
        step = self.steps.get(job, 0) if kind == "knobs" else step
        self.steps[job] = max(self.steps.get(job, 0), step)
        found = self.folders[job]
        place = len(found.records)
        found.records.append(
            Event(
                sequence=place,
                kind=kind,
                time_s=0.1 * place,
                step=step,
                worker=worker,
                knob_version=knob_version,
                data=data,
            )
        )


class Served:
    """A service with a still runtime, at `url`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.runtime = PacedRuntime()
        self._settings = settings_for(folder)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = int(probe.getsockname()[1])
        self.tokens: dict[str, str] = {}
        self.start()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start it, with the books as they are."""
        self._store = Store(self._settings.database_url)
        self._store.database.migrate()
        self.tokens = self.tokens or tokens_for(self._store)
        self.parts: Parts = assemble(self._settings, self._store, self.runtime, TALKS)
        bound = socket.socket()
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", self._port))
        config = server_config(self.parts)
        config.timeout_graceful_shutdown = 1
        self._server = uvicorn.Server(config)
        self._server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.run, args=([bound],), daemon=True)
        self._thread.start()
        until(lambda: self._server.started)

    def stop(self) -> None:
        """End it; what it has written stays."""
        self._server.should_exit = True
        self._thread.join(20)
        self._store.close()

    def call(self, method: str, path: str, role: str = "admin", **options: Any) -> Any:
        """Send a request with a role's token; return its JSON."""
        headers = {"Authorization": f"Bearer {self.tokens[role]}"}
        answer = httpx2.request(method, f"{self.url}/api/v1{path}", headers=headers, timeout=20, **options)
        assert answer.status_code < 400, answer.text
        return answer.json() if answer.content else None

    def running(self, **spec: Any) -> str:
        """Submit a job and let it run; return its id."""
        id: str = self.call("POST", "/jobs", json={"spec": {**SPEC, **spec}})["id"]
        until(lambda: id in self.runtime.alive)
        self.runtime.enter(id, "STARTING")
        self.runtime.enter(id, "RUNNING")
        until(lambda: self.call("GET", f"/jobs/{id}")["state"] == "RUNNING")
        return id

    def train(self, job: str, first: int, count: int, delta: float = 0.3) -> None:
        """Let a job of two workers take steps: what a SelSync job tells."""
        for step in range(first, first + count):
            signals = [0.25 + 0.2 * ((step * (3 + worker)) % 7) / 7 for worker in range(2)]
            sync = max(signals) > delta
            self.runtime.tell(
                job,
                "decision",
                {
                    "sync": sync,
                    "reason": "a signal is above delta" if sync else "no signal is above delta",
                    "round": step,
                    "scores": {str(worker): signal for worker, signal in enumerate(signals)},
                },
                step=step,
            )
            sent = 4000.0 * (step + 1)
            values: dict[str, Any] = {
                "train/loss": 2.0 / (1 + 0.1 * step) + 0.05 * ((step * 7) % 5),
                "sync/grad_delta": max(signals),
                "sync/delta": delta,
                "sync/lssr": 0.6,
                "comm/bytes_up": sent,
                "comm/bytes_down": sent / 2,
                "comm/compression": 24.0 + (step % 3),
                "feedback/residual_norm": 0.4 + 0.01 * (step % 9),
                "time/compute_s": 0.010,
                "time/encode_s": 0.002,
                "time/sync_s": 0.004,
                "sync/wait_s": 0.001 * (1 + step % 3),
                "train/samples_per_s": 900.0 + step % 50,
            }
            if step % 10 == 9:
                values["eval/accuracy"] = 1 - 0.9 / (1 + 0.05 * step)
            self.runtime.tell(job, "metrics", values, step=step)


def until(condition: Callable[[], Any], timeout_s: float = 60.0) -> None:
    """Wait for something to become true."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not come true in time"
        time.sleep(0.02)

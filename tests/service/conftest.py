"""The service around a still runtime, in process, with a token of each role."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from fastapi.testclient import TestClient

from service.http.deps import Parts
from service.security.auth import Role, create_token
from service.server.app import create_app
from service.server.wiring import assemble
from service.settings import Settings
from service.store import Store
from service.studies.keeper import Start
from tests.service.still_runtime import StillRuntime

SPEC: dict[str, Any] = {
    "name": "still",
    "task": {"kind": "digits"},
    "strategy": {"kind": "selsync", "delta": 0.3},
    "scale": {"workers": 2, "max_workers": 4},
    "budget": {"steps": 1000},
}
TALKS = Start(
    lambda: "nowhere",
    lambda *where: (sys.executable, str(Path(__file__).parent.parent / "talking_study.py"), *where),
    {"PYTHONPATH": str(Path(__file__).parents[2])},
)
"""Studies whose process only talks."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The last of the schema's tests counts what the others did: they stay in one process."""
    for item in items:
        if item.path == Path(__file__).parent / "test_schema.py":
            item.add_marker(pytest.mark.xdist_group("schema"))


class World(NamedTuple):
    """A running service and everything around it."""

    http: TestClient
    parts: Parts
    runtime: StillRuntime
    tokens: dict[str, str]

    def call(self, method: str, path: str, role: str | None = "admin", **options: Any) -> Any:
        """Send a request with a role's token."""
        headers = {"Authorization": f"Bearer {self.tokens[role]}"} if role else {}
        return self.http.request(method, path, headers={**headers, **options.pop("headers", {})}, **options)

    def submit(self, **fields: Any) -> str:
        """Submit a job; return its id."""
        answer = self.call("POST", "/api/v1/jobs", json={"spec": {**SPEC, **fields.pop("spec", {})}, **fields})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def job(self, id: str) -> dict[str, Any]:
        """Look at a job."""
        found: dict[str, Any] = self.call("GET", f"/api/v1/jobs/{id}").json()
        return found

    def running(self, **fields: Any) -> str:
        """Submit a job and let it run; return its id."""
        id = self.submit(**fields)
        until(lambda: id in self.runtime.alive)
        self.runtime.enter(id, "STARTING")
        self.runtime.enter(id, "RUNNING")
        until(lambda: self.job(id)["state"] == "RUNNING")
        return id

    def finished(self, state: str = "SUCCEEDED", num_metrics: int = 0) -> str:
        """Return the id of a job that has ended."""
        id = self.running()
        for step in range(num_metrics):
            self.runtime.tell(id, "metrics", {"train/loss": 1.0 / (step + 1)}, step=step)
        self.runtime.enter(id, state)
        until(lambda: self.job(id)["is_terminal"])
        return id


def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Wait for something to become true."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not come true in time"
        time.sleep(0.01)


def settings_for(folder: Path, **changes: Any) -> Settings:
    """Return settings that stay inside a folder."""
    places: dict[str, Any] = {"data": folder / "data", "storage": str(folder / "jobs"), "allow_hosts": ("testserver",)}
    return Settings(**{**places, "max_live_jobs": 1000, **changes})


def tokens_for(store: Store) -> dict[str, str]:
    """Return a token of each role."""
    return {role.value: create_token(store.tokens, role.value, role) for role in Role}


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with all tables, to be copied."""
    path = tmp_path_factory.mktemp("books") / "raysync.db"
    store = Store(f"sqlite:///{path}")
    store.database.migrate()
    store.close()
    return path


@pytest.fixture
def store(tmp_path: Path, empty_database: Path) -> Iterator[Store]:
    settings = settings_for(tmp_path)
    shutil.copy(empty_database, settings.folder / "raysync.db")
    store = Store(settings.database_url)
    yield store
    store.close()


@pytest.fixture
def world(tmp_path: Path, store: Store) -> Iterator[World]:
    settings = settings_for(tmp_path)
    runtime = StillRuntime()
    parts = assemble(settings, store, runtime, TALKS)
    tokens = tokens_for(store)  # before the service writes: on a stalled disk one of them waits for the other
    with TestClient(create_app(parts), raise_server_exceptions=False) as http:
        yield World(http, parts, runtime, tokens)

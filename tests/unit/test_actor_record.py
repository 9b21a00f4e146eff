"""Clearing actors away: what does not end in time is killed, and leaves nothing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors.job import actor_record
from actors.job.actor_record import ActorRecord, clear
from actors.link.base import Endpoint
from actors.shell.core_actor import Hello
from raysync.address import worker


class FakeRay:
    """A Ray on which calls answer or not, as a test says."""

    def __init__(self, answering: set[str]) -> None:
        self.answering, self.killed = answering, list[Any]()

    def wait(self, calls: list[str], num_returns: int, timeout: float) -> tuple[list[str], list[str]]:
        return [call for call in calls if call in self.answering], [c for c in calls if c not in self.answering]

    def kill(self, actor: Any, no_restart: bool) -> None:
        self.killed.append(actor.name)

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "here")


def record(folder: Path, number: int, node_id: str) -> ActorRecord:
    folder.mkdir()
    (folder / "inbox").touch()

    def call(name: str) -> Any:
        return SimpleNamespace(remote=lambda *arguments: f"{name} {number}")

    actor = SimpleNamespace(name=number, hello=call("hello"), wait=call("wait"), halt=call("halt"))
    found = ActorRecord((worker(number),), actor, node_id, None)
    endpoint = Endpoint("tcp://127.0.0.1:1", str(folder / "inbox"))
    found.hello = Hello((worker(number),), "127.0.0.1", node_id, 1, "direct", endpoint, None)
    return found


def test_an_actor_that_does_not_end_in_time_is_killed_and_swept_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeRay({"halt 0"})
    monkeypatch.setattr(actor_record, "ray", fake)
    folders = [tmp_path / f"raysync-{number}" for number in range(3)]
    clear([record(folder, n, "there" if n == 2 else "here") for n, folder in enumerate(folders)])
    assert fake.killed == [0, 1, 2]
    assert [folder.exists() for folder in folders] == [True, False, True], "the first cleared up itself"

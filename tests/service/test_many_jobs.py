"""Very many live jobs: a small slice of `python -m tests.bench live_jobs`, and a gateway that is asked too much."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from actors import gateway
from raysync.ports import Records
from raysync.questions import Answer, Ask, Greeting
from tests.bench import live_jobs


def test_many_live_jobs_are_kept_up_with(capsys: pytest.CaptureFixture[str]) -> None:
    assert live_jobs.run(num_jobs=60, measured_s=4.0, events_per_s=1.0) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["gateways"], found["errors"], found["lease_owners"]) == (1, 0, 1)
    assert found["lease_left_least_s"] > 5
    assert found["events_missing"] == 0
    assert found["taken_in_per_s"] > 30


class Busy:
    """A gateway whose jobs have nothing to tell until the test is over."""

    over = threading.Event()

    def ping(self) -> str:
        """Return the cluster's name."""
        return "busy"

    def records(self, job: str, after: int, wait_s: float) -> Records:
        """Wait."""
        self.over.wait(wait_s)
        return Records([])


def test_a_ping_waits_behind_no_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many jobs as a service follows at most, all waiting to be told something: the gateway still says it lives."""
    monkeypatch.setattr(gateway, "Gateway", Busy)
    monkeypatch.setattr(gateway, "cluster_name", lambda: "busy")
    endpoint = f"ipc://{tmp_path}/socket"

    async def asked() -> float:
        socket = zmq.asyncio.Context.instance().socket(zmq.PAIR)
        socket.linger = 0
        socket.bind(endpoint)
        serving = asyncio.create_task(gateway.serve(endpoint, os.getppid()))
        assert msgspec.msgpack.decode(await socket.recv(), type=Greeting).cluster == "busy"
        arguments: dict[str, Any] = {"job": "x", "after": -1, "wait_s": 30.0}
        for number in range(400):
            await socket.send(msgspec.msgpack.encode(Ask(number, "records", arguments)))
        sent_s = time.monotonic()
        await socket.send(msgspec.msgpack.encode(Ask(1000, "ping", {})))
        answer = await asyncio.wait_for(socket.recv(), 10)
        took_s = time.monotonic() - sent_s
        assert msgspec.msgpack.decode(answer, type=Answer).value == "busy"
        Busy.over.set()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        socket.close()
        return took_s

    assert asyncio.run(asked()) < 5.0

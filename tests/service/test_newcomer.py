"""What a newcomer is told on the way: by the service, its log, and the command line against it."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from raysync.errors import NotRunning
from raysync.spec import parse_spec
from service.cli import app
from service.client import Client, Unreachable
from service.client.retry import AWAY_S, Away
from service.client.stream import PATIENCE_S, Stream, lines_of
from service.http.catalogue import catalogue
from service.server.serve import offer
from tests.service.conftest import SPEC, World, tokens_for, until
from tests.service.still_runtime import StillRuntime
from tests.service.test_client import Server, started
from tests.service.test_manager import serving


@pytest.fixture
def runtime() -> StillRuntime:
    return StillRuntime()


@pytest.fixture
def server(tmp_path: Path, runtime: StillRuntime) -> Iterator[Server]:
    server = Server(tmp_path, runtime)
    yield server
    server.stop()


def test_more_cpus_offered_than_there_are_is_said() -> None:
    assert offer(8, 8) == "its own, 8 CPUs offered to jobs"
    assert "8 CPUs offered to jobs; this machine has 2, so workers share them" in offer(8, 2)
    assert "--num-cpus 2" in offer(8, 2)


@pytest.mark.parametrize(
    ("state", "checkpoints", "words"),
    [
        ("STOPPED", 2, "go on from step 10 with `raysync submit --resume-from {id}`"),
        ("FAILED", 1, "go on from step 0 with `raysync submit --resume-from {id}`"),
        ("STOPPED", 0, "it left no checkpoint to go on from"),
        ("SUCCEEDED", 1, "its knobs do not turn any more"),
    ],
)
@pytest.mark.parametrize("verb", ["resume", "pause"])
def test_resuming_an_ended_job_points_to_its_checkpoint(
    world: World, state: str, checkpoints: int, words: str, verb: str
) -> None:
    id = world.running()
    for _ in range(checkpoints):
        world.call("POST", f"/api/v1/jobs/{id}/checkpoints")
    world.runtime.enter(id, state)
    until(lambda: world.job(id)["is_terminal"])
    answer = world.call("POST", f"/api/v1/jobs/{id}/{verb}")
    assert answer.status_code == 409
    assert answer.json()["detail"].endswith(words.format(id=id)), answer.text


def test_a_controller_that_has_ended_does_not_say_try_again() -> None:
    assert "try again once it runs" in str(NotRunning("j", "PENDING", "why"))
    assert "resume_from" in str(NotRunning("j", "STOPPED", "why"))


def test_a_restarted_service_logs_which_jobs_it_found(
    tmp_path: Path, runtime: StillRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    def found() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.getMessage().startswith("found ")]

    with caplog.at_level(logging.INFO), serving(tmp_path, runtime) as world:
        running, ended = world.running(), world.finished()
        runtime.tell(running, "metrics", {"train/loss": 1.0}, step=12)
        until(lambda: world.job(running)["step"] == 12)
        assert found() == [], "what was submitted here was not found"
    with caplog.at_level(logging.INFO), serving(tmp_path, runtime):
        until(lambda: bool(found()))
    assert found() == [f"found 1 job: {running} (RUNNING, step 12)"]
    assert ended not in found()[0]


def test_an_end_the_service_tells_itself_is_not_before_what_the_job_told(tmp_path: Path, runtime: StillRuntime) -> None:
    with serving(tmp_path, runtime) as world:
        id = world.running()
        runtime.lose_cluster()
        runtime.cluster = "another"
        until(lambda: world.job(id)["state"] == "FAILED")
        times = [event["time_s"] for event in world.call("GET", f"/api/v1/jobs/{id}/events").json()["items"]]
    assert len(times) > 2
    assert all(before <= after for before, after in pairwise(times)), times


def test_components_tell_whole_sentences() -> None:
    found = catalogue()
    members = [member for family in found.families.values() for member in family]
    assert [member.kind for member in members if not member.summary.endswith((".", "QSR."))] == []
    assert {"delta", "ema_beta", "lr", "sparse_fraction", "workers", "pause"} <= found.knobs.keys()
    told = CliRunner().invoke(app, ["components"], env={"RAYSYNC_DATA": "/nonexistent"}).output
    assert "so any one can call a synchronisation." in told
    assert "async_sparse       Asynchronous sparse averaging: no replica waits for another." in told


def cli(server: Server, *arguments: str) -> Any:
    env = {"RAYSYNC_URL": server.url, "RAYSYNC_TOKEN": tokens_for(server.store)["admin"], "COLUMNS": "140"}
    return CliRunner().invoke(app, list(arguments), env=env)


def test_an_ended_job_is_not_shown_with_no_workers(server: Server, runtime: StillRuntime) -> None:
    with Client(server.url, tokens_for(server.store)["admin"]) as client:
        id = started(client, runtime)
        runtime.tell(id, "view", {"number": 1, "members": [0, 1], "joined": [0, 1], "left": [], "died": []})
        until(lambda: client.job(id).workers == 2)
        assert "workers    2\n" in cli(server, "show", id).stdout
        runtime.enter(id, "SUCCEEDED")
        client.wait(id, 10)
    assert "workers    2 when it ended" in cli(server, "show", id).stdout
    row = next(line for line in cli(server, "list").stdout.splitlines() if id in line)
    assert " 0 " not in row.partition("0/1000")[0]


def test_a_stream_says_when_its_service_is_away_and_back(tmp_path: Path, runtime: StillRuntime) -> None:
    first = Server(tmp_path, runtime)
    client = Client(first.url, tokens_for(first.store)["admin"])
    id = started(client, runtime)
    contacts: list[bool] = []

    def collect() -> None:
        for _ in client.follow(id, on_contact=contacts.append):
            pass

    reader = threading.Thread(target=collect, daemon=True)
    reader.start()
    until(lambda: True in contacts)
    first.stop()
    until(lambda: False in contacts)
    second = Server(tmp_path, runtime, port=first.port)
    until(lambda: contacts[-1])
    runtime.enter(id, "SUCCEEDED")
    reader.join(20)
    assert not reader.is_alive()
    client.close()
    second.stop()


def test_patience_with_a_service_that_is_gone_has_an_end() -> None:
    began_s = time.monotonic()
    with Client("http://127.0.0.1:1", "x") as client, pytest.raises(Unreachable):
        list(client.follow("still-1a2b3c4d", patience_s=1.0))
    assert 1.0 <= time.monotonic() - began_s < 10


def test_a_service_that_says_it_cannot_now_is_waited_for_longer() -> None:
    def waited_s(stream: Stream, error: Exception) -> float:
        total_s = 0.0
        with contextlib.suppress(Unreachable):
            while total_s < 600:
                total_s += stream.broke_off(error, "http://here")
        return total_s

    silence, away = ConnectionError("refused"), Away("answered 503")
    assert PATIENCE_S <= waited_s(Stream("/x", lines_of), silence) < 2 * PATIENCE_S
    assert AWAY_S <= waited_s(Stream("/x", lines_of, patience_s=1.0), away) < AWAY_S + 10
    assert 100 <= waited_s(Stream("/x", lines_of, patience_s=100.0), away) < 110
    mixed = Stream("/x", lines_of)
    for _ in range(8):
        mixed.broke_off(away, "http://here")
    assert PATIENCE_S <= waited_s(mixed, silence) < 2 * PATIENCE_S, "it has not been silent so long"


def test_the_whole_specification_is_kept_for_going_on(tmp_path: Path, runtime: StillRuntime) -> None:
    server = Server(tmp_path, runtime, allow_entrypoints=("mine:*",))
    spec = parse_spec({**SPEC, "task": {"kind": "custom", "entrypoint": "mine:Task"}})
    with Client(server.url, tokens_for(server.store)["admin"]) as client:
        first = client.submit(spec, pip=("numpy>=2",), on_cluster_loss="resume", priority=4)
        until(lambda: first.id in runtime.alive)
        again = cli(server, "submit", "--resume-from", first.id)
        assert again.exit_code == 0, again.stderr
        job = client.job(again.stdout.strip())
    assert job.spec == first.spec
    assert (job.pip, job.on_cluster_loss, job.priority) == (["numpy>=2"], "resume", 4)
    assert str(job.resume_from).endswith(first.id)
    server.stop()

"""Smaller things that went wrong once: numbers, modes, long reasons, options that were passed over, and who did it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import stat
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from raysync.errors import SpecError
from raysync.ports import LogPage
from raysync.reason import shortened
from raysync.spec import parse_spec
from raysync.value import MAX_INTEGER
from service.cli import app
from service.cli.jobs import zipped
from service.client import Client
from service.errors import BadRequest, DatabaseError
from service.http.views import read_cursor
from service.settings import Settings
from service.store import Store
from tests.service.conftest import SPEC, World, tokens_for, until
from tests.service.still_runtime import StillRuntime
from tests.service.test_client import JOB, Server, started
from tests.service.test_store import books, postgres

__all__ = ["books", "postgres"]

HUGE = 10**30


# Numbers


@pytest.mark.parametrize("value", [HUGE, -HUGE, MAX_INTEGER + 1])
@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("budget.steps", {}),
        ("eval_every", {}),
        ("checkpoint.every_rounds", {}),
        ("checkpoint.keep", {}),
        ("compression.min_bytes", {}),
        ("data.batch_size", {}),
        ("scale.max_workers", {}),
        ("task.corpus_bytes", {"task": {"kind": "char_lm"}}),
        ("task.dim", {"task": {"kind": "quadratic"}}),
        ("strategy.sync_every", {"strategy": {"kind": "local_sgd"}}),
        ("strategy.staleness_bound", {"strategy": {"kind": "ssp"}}),
        ("lr_schedule.warmup_steps", {"lr_schedule": {"kind": "cosine"}}),
    ],
)
def test_a_number_nobody_can_keep_is_named(value: int, path: str, part: dict[str, Any], world: World) -> None:
    spec = json.loads(json.dumps({**SPEC, **part}))
    *parents, leaf = path.split(".")
    target = spec
    for parent in parents:
        target = target.setdefault(parent, {})
    target[leaf] = value
    answer = world.call("POST", "/api/v1/jobs", json={"spec": spec})
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["field"] == f"spec.{path}"


def test_every_number_of_a_specification_is_bounded() -> None:
    with pytest.raises(SpecError, match=r"2\*\*53"):
        parse_spec({**SPEC, "task": {"kind": "digits", "hidden": [HUGE]}})
    assert parse_spec({**SPEC, "budget": {"steps": MAX_INTEGER}}).budget.steps == MAX_INTEGER


def test_odd_numbers_elsewhere_are_no_500(world: World) -> None:
    id = world.running()
    path = f"/api/v1/jobs/{id}/knobs"
    for body in ({"values": {"delta": 1}, "expected_version": HUGE}, {"values": {"workers": HUGE}}):
        assert world.call("PATCH", path, json=body).status_code == 422
    for value in ("0", "-1", str(HUGE), "NaN", "1e9", "٣"):
        for what in (
            "metrics?limit",
            "metrics?after",
            "metrics?points",
            "events?after",
            "logs?tail",
            "logs/stream?tail",
        ):
            answer = world.call("GET", f"/api/v1/jobs/{id}/{what}={value}")
            fits = value in ("0", "-1") and "after" in what
            assert answer.status_code == (200 if fits else 422), (what, value)
    for number in ("1e999", "NaN", "Infinity", "9" * 290, "1" + "0" * 290):
        with contextlib.suppress(BadRequest):
            assert float(read_cursor(_cursor(f'["-created", {number}, "a"]'))[0]) < float("inf")


def _cursor(text: str) -> str:
    import base64

    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


# The data folder


def test_a_folder_that_was_there_keeps_its_mode(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    settings = Settings(data=shared)
    assert settings.folder == shared
    assert stat.S_IMODE(shared.stat().st_mode) == 0o755
    store = Store(settings.database_url)
    store.database.migrate()
    store.close()
    assert stat.S_IMODE((shared / "raysync.db").stat().st_mode) == 0o600, "what is in it is guarded itself"
    made = Settings(data=tmp_path / "deep" / "made").folder
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    own = tmp_path / "own.db"
    own.touch(mode=0o640)
    own.chmod(0o640)
    Store(f"sqlite:///{own}").close()
    assert stat.S_IMODE(own.stat().st_mode) == 0o640


# Reasons


def test_a_long_traceback_is_shown_once_and_listed_in_a_line(world: World) -> None:
    lines = "".join(f'  File "deep.py", line {n}, in f\n' for n in range(100_000))
    reason = f"worker 1 failed:\nTraceback (most recent call last):\n{lines}ValueError: the real cause"
    assert len(reason) > 3_000_000
    id = world.running()
    world.runtime.enter(id, "FAILED", reason)
    until(lambda: world.job(id)["is_terminal"])
    listed = world.call("GET", "/api/v1/jobs")
    assert listed.json()["items"][0]["reason"] == "worker 1 failed: ValueError: the real cause"
    assert len(listed.content) < 5000
    found = world.job(id)
    assert (found["reason"], found["traceback"]) == ("worker 1 failed: ValueError: the real cause", reason)
    assert world.parts.store.jobs.page(1)[0].reason == "worker 1 failed: ValueError: the real cause"
    assert len(shortened("x" * 1000)) == 300


def test_a_newer_database_is_told_as_that(books: Store) -> None:
    with books.database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9042'"))
    with pytest.raises(DatabaseError, match=r"newer.*9042.*--data"):
        books.database.migrate()


def test_the_command_line_says_so_too(tmp_path: Path) -> None:
    store = Store(Settings(data=tmp_path).database_url)
    store.database.migrate()
    with store.database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9042'"))
    store.close()
    found = CliRunner().invoke(app, ["token", "list", "--data", str(tmp_path)])
    assert found.exit_code == 2
    assert "newer" in found.output
    assert "Traceback" not in found.output


# Who did it


def test_events_and_reasons_name_who_did_it(world: World) -> None:
    id = world.running()
    world.call("PATCH", f"/api/v1/jobs/{id}/knobs", "operator", json={"values": {"delta": 0.7}})
    world.call("POST", f"/api/v1/jobs/{id}/pause", "operator")
    world.call("PUT", f"/api/v1/jobs/{id}/workers", "admin", json={"count": 3})
    path = f"/api/v1/jobs/{id}/events"
    until(lambda: len(world.call("GET", path, params={"kind": "knobs"}).json()["items"]) == 3)
    events = world.call("GET", path, params={"kind": "knobs"}).json()["items"]
    assert [event["data"]["by"] for event in events] == ["operator", "operator", "admin"]
    world.call("POST", f"/api/v1/jobs/{id}/stop", "operator")
    until(lambda: world.runtime.alive[id].stopped is not None)
    assert world.runtime.alive[id].stopped[0] == "operator stopped it"  # type: ignore[index]
    other = world.running()
    world.call("POST", f"/api/v1/jobs/{other}/stop", "admin", json={"reason": "too dear"})
    assert world.parts.store.jobs.get(other).stop == "admin stopped it: too dear"


def test_a_job_stopped_before_it_started_names_who(world: World) -> None:
    world.runtime.lose_cluster()
    id = world.submit()
    world.call("POST", f"/api/v1/jobs/{id}/stop", "operator")
    until(lambda: world.job(id)["is_terminal"])
    assert world.job(id)["reason"] == "operator stopped it, before it started"


# Query parameters


@pytest.mark.parametrize(
    "path",
    ["jobs?submitter=nobody", "jobs?State=RUNNING", "jobs/{id}?verbose=1", "jobs/{id}/events?kinds=knobs&after=1"]
    + ["jobs/{id}/metrics?point=5", "jobs/{id}/logs?lines=5", "jobs/{id}/knobs?x=", "components?family=codecs"],
)
def test_an_unknown_query_parameter_is_named(path: str, world: World) -> None:
    answer = world.call("GET", "/api/v1/" + path.replace("{id}", world.running()))
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:raysync:invalid-request")
    name = path.partition("?")[2].partition("=")[0]
    assert answer.json()["errors"][0]["field"] == f"query.{name}"
    assert "there is no such parameter" in answer.json()["detail"]


def test_known_parameters_pass_and_strangers_are_told_nothing(world: World) -> None:
    id = world.running()
    for path in (
        "jobs?state=RUNNING&limit=3",
        f"jobs/{id}/events?after=-1&limit=2&kind=state",
        f"jobs/{id}/logs?tail=1",
    ):
        assert world.call("GET", f"/api/v1/{path}").status_code == 200
    for method, path in (
        ("POST", f"jobs/{id}/pause?now=1"),
        ("POST", "jobs?dry_run=1"),
        ("DELETE", f"jobs/{id}?force=1"),
    ):
        assert world.call(method, f"/api/v1/{path}", json={"spec": SPEC}).status_code == 422
    assert world.call("GET", "/metrics?x=1").status_code == 422
    assert world.call("GET", "/openapi.json?x=1").status_code == 422
    assert world.call("GET", "/api/v1/jobs?x=1", role=None).status_code == 401
    assert world.call("GET", "/healthz?now=1", role=None).status_code == 200, "probes may add what they like"


# The command line


class Shell:
    """The command line against a real server."""

    def __init__(self, folder: Path) -> None:
        self.runtime = StillRuntime()
        self.server = Server(folder, self.runtime)
        self.token = tokens_for(self.server.store)["admin"]
        self.client = Client(self.server.url, self.token)
        self.folder = folder

    def run(self, *arguments: str, **options: Any) -> Any:
        """Run a command."""
        env = {"RAYSYNC_URL": self.server.url, "RAYSYNC_TOKEN": self.token, "RAYSYNC_DATA": str(self.folder / "data")}
        return CliRunner().invoke(app, list(arguments), env=env, **options)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    shell.client.close()
    shell.server.stop()


def test_a_job_comes_in_on_stdin(shell: Shell) -> None:
    found = shell.run("submit", "-", "--json", input=json.dumps(SPEC))
    assert found.exit_code == 0, found.output
    assert shell.client.job(json.loads(found.stdout)["id"]).name == "still"
    wrong = shell.run("submit", "-", input="task: {kind: digts}")
    assert wrong.exit_code == 2
    assert "task.kind" in wrong.output
    empty = shell.run("submit", "-", input="")
    assert (empty.exit_code, "stdin" in empty.output) == (2, True)
    run = shell.run("run", "-", input="task: {kind: digts}")
    assert (run.exit_code, "task.kind" in run.output) == (2, True)


def test_removing_and_revoking_print_json(shell: Shell) -> None:
    id = started(shell.client, shell.runtime)
    shell.runtime.enter(id, "SUCCEEDED")
    shell.client.wait(id, 10)
    found = shell.run("remove", id, "--json")
    assert json.loads(found.stdout) == {"id": id, "removed": True}
    token = json.loads(shell.run("token", "create", "short", "--json").stdout)["token"].split("_")[1]
    assert json.loads(shell.run("token", "revoke", token, "--json").stdout) == {"id": token, "revoked": True}


def test_following_a_log_begins_with_its_tail(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"2026-01-01T00:00:00 worker/{n % 2} | line {n}" for n in range(100)]

    async def log(path: str, offset: int | None, tail_lines: int) -> LogPage:
        if offset is None:
            return LogPage(lines[-tail_lines:], len(lines))
        return LogPage(lines[offset:], max(offset, len(lines)))

    monkeypatch.setattr(shell.runtime, "log", log)
    id = started(shell.client, shell.runtime)

    def later() -> None:
        time.sleep(1.0)
        lines.append("2026-01-01T00:00:00 worker/0 | the last")
        shell.runtime.enter(id, "SUCCEEDED")

    threading.Thread(target=later).start()
    found = shell.run("logs", id, "-f", "--tail", "3").stdout.splitlines()
    assert [line.split(" | ")[1] for line in found] == ["line 97", "line 98", "line 99", "the last"]
    only = shell.run("logs", id, "-f", "--tail", "2", "--actor", "worker/1").stdout.splitlines()
    assert [line.split(" | ")[1] for line in only] == ["line 97", "line 99"]
    assert len(shell.run("logs", id, "-f").stdout.splitlines()) == 101
    assert len(shell.run("logs", id).stdout.splitlines()) == 101
    assert len(shell.run("logs", id, "--tail", "5").stdout.splitlines()) == 5


def test_watching_all_jobs_prints_json(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.cli.watch._REFRESH_S", 0.05)
    id = started(shell.client, shell.runtime)
    pauses = iter(range(1000))

    def pause(seconds: float, sleep: Any = time.sleep) -> None:
        sleep(seconds)
        turn = next(pauses)
        if turn == 3:
            shell.runtime.enter(id, "SUCCEEDED")
        if turn > 40 and shell.client.job(id).is_terminal:
            raise KeyboardInterrupt

    monkeypatch.setattr("service.cli.watch.time.sleep", pause)
    found = shell.run("watch", "--json")
    told = [json.loads(line) for line in found.stdout.splitlines()]
    assert found.exit_code == 130
    assert {record["kind"] for record in told} == {"job"}
    assert next(record["state"] for record in told if record["id"] == id) == "RUNNING"
    assert told[-1]["state"] == "SUCCEEDED"


def test_files_from_before_1980_are_packed(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text("x = 1")
    os.utime(tmp_path / "old.py", (0, 0))
    (tmp_path / "far.py").write_text("x = 2")
    os.utime(tmp_path / "far.py", (2**33, 2**33))
    with zipfile.ZipFile(io.BytesIO(zipped(tmp_path))) as archive:
        assert sorted(archive.namelist()) == ["far.py", "old.py"]
        assert archive.read("old.py") == b"x = 1"


def test_a_stop_from_the_command_line_names_who(shell: Shell) -> None:
    id = started(shell.client, shell.runtime)
    assert shell.run("stop", id).exit_code == 0
    assert shell.runtime.alive[id].stopped == ("admin stopped it", 60.0)
    other = shell.client.submit(JOB).id
    until(lambda: other in shell.runtime.alive)
    assert shell.run("stop", other, "--reason", "too dear").exit_code == 0
    assert shell.runtime.alive[other].stopped == ("admin stopped it: too dear", 60.0)

"""Commands that read what jobs told, and the small comforts: wait, metrics, events, download, --set, id prefixes."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from service.cli import app
from service.cli.fields import with_fields
from service.client import AsyncClient, Client
from service.client.finding import NoSuchJob, found_id
from tests.service.conftest import SPEC, tokens_for, until
from tests.service.still_runtime import StillRuntime
from tests.service.test_client import Server, started

MODEL = b"weights" * 400_000


class Shell:
    """A service, and a command line that talks to it."""

    def __init__(self, folder: Path) -> None:
        self.runtime = StillRuntime()
        self.server = Server(folder, self.runtime)
        self.tokens = tokens_for(self.server.store)
        self.client = Client(self.server.url, self.tokens["admin"])

    def run(self, *words: str, role: str = "admin") -> Any:
        """Run a command."""
        where = {"RAYSYNC_URL": self.server.url, "RAYSYNC_TOKEN": self.tokens[role]}
        return CliRunner().invoke(app, [*words], env=where)

    def lines(self, *words: str) -> list[Any]:
        """Return what a command prints under --json."""
        found = self.run(*words, "--json")
        assert found.exit_code == 0, found.output
        return [json.loads(line) for line in found.stdout.splitlines()]

    def ended(self, state: str = "SUCCEEDED", reason: str = "the test says so") -> str:
        """Return the id of a job that has ended."""
        id = started(self.client, self.runtime)
        for step in range(30):
            self.runtime.tell(id, "metrics", {"train/loss": 1.0 / (step + 1), "comm/bytes_up": 100.0 * step}, step=step)
        self.runtime.enter(id, state, reason)
        self.client.wait(id, 20)
        return id


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    shell = Shell(tmp_path_factory.mktemp("shell"))
    yield shell
    shell.client.close()
    shell.server.stop()


def test_wait_tells_how_jobs_ended_by_its_exit_code(shell: Shell) -> None:
    good, bad, stopped = shell.ended(), shell.ended("FAILED"), shell.ended("STOPPED")
    assert shell.run("wait", good).exit_code == 0
    assert shell.run("wait", good, bad, stopped).exit_code == 1
    found = shell.run("wait", good, stopped)
    assert (found.exit_code, found.stdout.splitlines()[1].split()[:2]) == (4, [stopped, "STOPPED"])
    assert shell.run("watch", stopped).exit_code == 4, "a stop is no Ctrl-C"
    live = started(shell.client, shell.runtime)
    late = shell.run("wait", live, "--timeout", "0.1")
    assert (late.exit_code, "still RUNNING" in late.output) == (5, True)
    shell.runtime.enter(live, "SUCCEEDED")
    assert [job["state"] for job in shell.lines("wait", live)] == ["SUCCEEDED"]


def test_metrics_and_events_of_a_job(shell: Shell) -> None:
    id = shell.ended()
    (loss,) = shell.lines("metrics", id, "--name", "train/loss", "--points", "4")
    assert (loss["job"], loss["count"], loss["min"], loss["max"]) == (id, 30, 1 / 30, 1.0)
    assert loss["bytes"][-1] == 2900
    assert len(loss["value"]) <= 4
    text = shell.run("metrics", id).stdout
    assert "train/loss  30 values" in text
    assert "comm/bytes_up" in text
    events = shell.lines("events", id)
    assert [event["sequence"] for event in events] == list(range(len(events)))
    assert [event["kind"] for event in shell.lines("events", id, "--kind", "state")] == ["state", "state"]
    assert [event["sequence"] for event in shell.lines("events", id, "--after", "3", "--limit", "2")] == [4, 5]
    assert shell.lines("events", id, "--follow", "--kind", "metrics")[-1]["step"] == 29
    assert "state" in shell.run("events", id, "--limit", "1").stdout


def test_download_of_the_model_and_of_a_checkpoint(shell: Shell, tmp_path: Path) -> None:
    id = shell.ended()
    shell.runtime.folders[id].files = {
        "final/model.pt": ("model", MODEL, None),
        "checkpoint_000003/worker-0.pt": ("checkpoint", b"part", 30),
        "checkpoint_000003/manifest.json": ("checkpoint", b"{}", 30),
    }
    assert [item["path"] for item in shell.lines("download", id, "--list")] == [*shell.runtime.folders[id].files]
    assert shell.run("download", id, "--to", str(tmp_path)).exit_code == 0
    assert (tmp_path / "final/model.pt").read_bytes() == MODEL
    told = shell.lines("download", id, "checkpoint_000003", "--to", str(tmp_path))
    assert [found["size_bytes"] for found in told] == [4, 2]
    assert (tmp_path / "checkpoint_000003/worker-0.pt").read_bytes() == b"part"
    missing = shell.run("download", id, "checkpoint_000009")
    assert (missing.exit_code, "there is checkpoint_000003, final" in missing.output) == (2, True)
    refused = shell.run("download", id, "--to", str(tmp_path), role="viewer")
    assert (refused.exit_code, "operator" in refused.output) == (2, True)
    assert not [*tmp_path.rglob("*.part")], "nothing half is left"


def test_the_asynchronous_client_has_it_all(shell: Shell) -> None:
    id = shell.ended()
    shell.runtime.folders[id].files = {"final/model.pt": ("model", MODEL, None)}

    async def asked() -> None:
        async with AsyncClient(shell.server.url, shell.tokens["operator"]) as client:
            assert await client.find(id[:-2]) == id
            assert (await client.me()).role == "operator"
            page = await client.series(id, ["train/loss"], points=10)
            assert page.jobs[0].series[0].count == 30
            assert (await client.series([id], "train/loss", after=page.next_after)).jobs[0].series == []
            assert (await client.check(SPEC)).dry_run
            assert [item.path for item in (await client.artifacts(id)).items] == ["final/model.pt"]
            file = io.BytesIO()
            assert await client.download(id, "final/model.pt", file) == len(MODEL)
            assert file.getvalue() == MODEL
            assert (await client.trace(id)).spans == []
            kinds = [message.kind async for message in client.follow_all(jobs=id, after=-1)]
            assert {*kinds} == {"events", "jobs"}

    asyncio.run(asked())


def test_fields_are_set_on_submission(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(SPEC))
    words = ("--set", "strategy.delta=inf", "--set", "labels.team=vision", "--set", "budget.steps=7", "--set", "seed=3")
    (job,) = shell.lines("submit", str(path), *words)
    spec = job["spec"]
    assert (spec["strategy"]["delta"], spec["budget"]["steps"], spec["seed"]) == ("Infinity", 7, 3)
    assert (spec["labels"], job["labels"]) == ({"team": "vision"}, {"team": "vision"})
    assert spec["strategy"]["kind"] == "selsync", "the rest is as the file says"
    (again,) = shell.lines("submit", str(path), "--set", "strategy={kind: bsp}", "--dry-run")
    assert (again["dry_run"], again["spec"]["strategy"]["kind"]) == (True, "bsp")
    assert [found["id"] for found in shell.lines("list", "--label", "team:vision")[0]] == [job["id"]]
    wrong = shell.run("submit", str(path), "--set", "strategy.dleta=1", "--json")
    found = json.loads(wrong.stderr)
    assert (wrong.exit_code, found["error"], found["errors"][0]["field"]) == (2, "SpecError", "strategy.dleta")
    assert shell.run("submit", str(path), "--set", "nonsense").exit_code == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.b=1", {"a": {"b": 1, "c": 2}}),
        ("a.d.e=x", {"a": {"b": 0, "c": 2, "d": {"e": "x"}}}),
        ("a=[1, 2]", {"a": [1, 2]}),
        ("a=null", {"a": None}),
        ("a=", {"a": None}),
        ("a=on", {"a": "on"}),
        ("a=1e-3", {"a": 0.001}),
        ("a=-7", {"a": -7}),
        ("a=x=y", {"a": "x=y"}),
        ("a=: {", {"a": ": {"}),
    ],
)
def test_a_value_is_read_as_yaml(text: str, expected: dict[str, Any]) -> None:
    assert with_fields({"a": {"b": 0, "c": 2}}, [text]) == expected


def test_an_id_may_be_cut_short(shell: Shell) -> None:
    id = started(shell.client, shell.runtime)
    random_end = id.rpartition("-")[2]
    for text in (id, id[:-2], random_end, random_end[:6]):
        assert json.loads(shell.run("show", text, "--json").stdout)["id"] == id
    assert shell.run("set", random_end, "delta=0.4").exit_code == 0
    assert shell.run("pause", random_end).exit_code == shell.run("resume", random_end).exit_code == 0
    assert shell.run("logs", random_end).exit_code == shell.run("checkpoints", random_end).exit_code == 0
    other = started(shell.client, shell.runtime)
    unclear = shell.run("stop", "still-")
    assert (unclear.exit_code, id in unclear.output, other in unclear.output) == (2, True, True)
    nobody = shell.run("show", "nobody-", "--json")
    assert (nobody.exit_code, json.loads(nobody.stderr)["error"]) == (2, "NoSuchJob")
    assert shell.run("stop", random_end, "--json").exit_code == 0
    shell.runtime.enter(id, "STOPPED")
    until(lambda: shell.client.job(id).is_terminal)
    assert shell.run("submit", "--resume-from", random_end).exit_code == 0
    assert shell.run("remove", random_end).exit_code == 0
    shell.runtime.enter(other, "SUCCEEDED")


def test_the_one_that_is_meant() -> None:
    assert found_id("a-1", ["a-1", "a-12"]) == "a-1"
    assert found_id("a", ["a-1"]) == "a-1"
    for ids in ([], ["a-1", "a-2"]):
        with pytest.raises(NoSuchJob):
            found_id("a", ids)


def test_lists_on_the_command_line(shell: Shell) -> None:
    ended, live = shell.ended(), started(shell.client, shell.runtime)
    listed = [job["id"] for job in shell.lines("list", "--live", "--limit", "100")[0]]
    assert live in listed
    assert ended not in listed
    listed = [
        job["id"] for job in shell.lines("list", "--ended", "--state", "succeeded,failed", "--sort", "created")[0]
    ]
    assert ended in listed
    assert live not in listed
    refused = shell.run("list", "--sort", "size", "--json")
    found = json.loads(refused.stderr)
    assert (refused.exit_code, found["status"], found["errors"][0]["field"]) == (2, 422, "query.sort")
    shell.runtime.enter(live, "SUCCEEDED")


def test_a_traceback_is_shown_beneath_its_line(shell: Shell) -> None:
    reason = "worker 1 failed:\nTraceback (most recent call last):\n  File x\nValueError: no"
    text = shell.run("show", shell.ended("FAILED", reason)).stdout
    assert "reason     worker 1 failed: ValueError: no" in text
    assert "Traceback (most recent call last)" in text

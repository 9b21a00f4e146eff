"""Every command the program prints works as printed: each is made to appear, taken from the output, and run."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2 as httpx
import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

import service.http.entering as entering
from service.cli import app
from service.errors import UnsafeBinding
from service.runtime.local_ray import EmbeddedRay
from service.server.serve import _leave, check_binding
from service.settings import Settings
from tests.printed import ROOT, pattern_of, readme_commands, templates
from tests.service.conftest import tokens_for, until
from tests.service.still_runtime import StillRuntime
from tests.service.test_client import Server

BIN = Path(sys.executable).parent
SPEC = {
    "name": "digits",
    "task": {"kind": "digits"},
    "strategy": {"kind": "selsync", "delta": 0.3},
    "compression": {"push": {"kind": "topk", "ratio": 0.1}},
    "scale": {"workers": 2, "max_workers": 6},
    "budget": {"steps": 1000},
}
ELSEWHERE = {
    "raysync run job.yaml": "tests/runtime/test_cli.py::test_what_an_interrupted_run_prints_goes_on",
    "raysync run {}": "tests/runtime/test_cli.py::test_what_an_interrupted_run_prints_goes_on",
    "raysync tune compression_ratio": "tests/runtime/test_studies.py::test_a_search_that_comes_with_raysync_runs",
    "raysync tune compression_ratio --job job.yaml --set floor.at_least=0.9": (
        "tests/runtime/test_studies.py::test_a_search_goes_around_a_users_own_job"
    ),
    "raysync tune my_search.yaml --working-dir my_code": "tests/runtime/test_readme.py::test_the_readmes_own_search_finds_a_job",
    "raysync tune --resume compression_ratio-3fa9b2 --trials +20": (
        "tests/runtime/test_studies.py::test_a_killed_driver_is_resumed_and_finished_trials_stay"
    ),
}
"""Commands that train, run on a real Ray."""


class Desk:
    """A folder with a job and code in it, a service on a still runtime, and a person who types commands."""

    def __init__(self, folder: Path, server: Server, runtime: StillRuntime) -> None:
        self.folder, self.server, self.runtime = folder, server, runtime
        (folder / "job.yaml").write_text(yaml.safe_dump(SPEC))
        (folder / "my_code").mkdir()
        (folder / "my_code" / "my_module.py").write_text("class MyTask: ...\n")
        self.env = {
            "HOME": str(folder),
            "RAYSYNC_URL": server.url,
            "RAYSYNC_TOKEN": tokens_for(server.store)["admin"],
            "RAYSYNC_DATA": str(folder / "data"),
            "COLUMNS": "200",
        }

    def type(self, text: str, **env: str | None) -> Result:
        """Run a command, given as a person types it."""
        program, *arguments = shlex.split(text)
        assert program == "raysync"
        return CliRunner().invoke(app, arguments, env={**self.env, **env})

    def help(self, words: str) -> str:
        """Return a command's help without its frames and line breaks."""
        return " ".join(re.sub(r"[│╭╮╰╯─]", " ", self.type(f"raysync {words} --help").stdout).split())

    def job(self) -> str:
        """Submit a job and let it run; return its id."""
        answer = self.type("raysync submit job.yaml")
        id = answer.stdout.strip()
        assert answer.exit_code == 0, answer.stderr
        until(lambda: id in self.runtime.alive)
        self.runtime.enter(id, "RUNNING")
        until(lambda: "RUNNING" in self.type(f"raysync show {id}").stdout)
        return id

    @contextlib.contextmanager
    def finishing(self) -> Iterator[None]:
        """Let every job that is started meanwhile, or runs, come to its end."""
        done, closing = set[str](), threading.Event()

        def work() -> None:
            while not closing.wait(0.05):
                for id in set(self.runtime.alive) - done:
                    self.runtime.enter(id, "RUNNING")
                    self.runtime.enter(id, "SUCCEEDED")
                    done.add(id)

        thread = threading.Thread(target=work)
        thread.start()
        yield
        closing.set()
        thread.join(10)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    runtime = StillRuntime()
    server = Server(tmp_path, runtime)
    monkeypatch.chdir(tmp_path)
    desk = Desk(tmp_path, server, runtime)
    yield desk
    server.stop()


@pytest.fixture
def example(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> str:
    """The job that helps speak of, with its knobs at version 3 and a checkpoint."""
    with monkeypatch.context() as patch:
        patch.setattr(entering.secrets, "token_hex", lambda size: "1a2b3c4d")
        id = desk.job()
    for delta in (0.4, 0.5, 0.6):
        assert desk.type(f"raysync set {id} delta={delta}").exit_code == 0
    assert desk.type(f"raysync checkpoints {id} --take").exit_code == 0
    return id


def stopped(desk: Desk) -> str:
    """Return what is printed when a job is stopped, shown, watched and resumed by mistake."""
    id = desk.job()
    desk.type(f"raysync checkpoints {id} --take")
    told = [desk.type(f"raysync stop {id}").stderr]
    desk.runtime.enter(id, "STOPPED")
    until(lambda: "STOPPED" in desk.type(f"raysync show {id}").stdout)
    told += [desk.type(f"raysync show {id}").stdout, desk.type(f"raysync watch {id}").stdout]
    told += [desk.type(f"raysync resume {id}").stderr, desk.type(f"raysync set {id} delta=1.0").stderr]
    assert all("raysync submit --resume-from" in text for text in told), told
    return "\n".join(told)


def left_behind(desk: Desk) -> str:
    """Return what a service says that ends while jobs run on a Ray of its own."""
    desk.job()
    said: list[str] = []
    _leave(desk.server.parts, EmbeddedRay(desk.folder / "ray", {}, 1), said.append)
    return "\n".join(said)


def unsafe(desk: Desk) -> str:
    with pytest.raises(UnsafeBinding) as caught:
        check_binding(Settings(host="0.0.0.0", data=desk.folder / "fresh"))
    return str(caught.value)


def no_service(desk: Desk) -> str:
    alone = {"RAYSYNC_URL": None, "RAYSYNC_DATA": str(desk.folder / "nobody")}
    told = desk.type("raysync list", **alone).stderr + desk.type("raysync list --url http://127.0.0.1:1").stderr
    assert told.count("`raysync serve`") == 2
    return told


APPEARS: dict[str, Callable[[Desk], str]] = {
    "raysync list": lambda desk: desk.help("show"),
    "raysync serve": no_service,
    "raysync serve --end": left_behind,
    "raysync set digits-1a2b3c4d delta=0.5": lambda desk: desk.help("set"),
    "raysync set digits-1a2b3c4d delta=0.5 --dry-run": lambda desk: desk.help("set"),
    "raysync set digits-1a2b3c4d lr=0.05 push_ratio=0.02 --expect 3": lambda desk: desk.help("set"),
    "raysync set {} {}": lambda desk: desk.type(f"raysync set {desk.job()} delta=inf lr=0.5").stderr,
    "raysync submit --resume-from digits-1a2b3c4d": lambda desk: desk.help("submit"),
    "raysync submit --resume-from {}": stopped,
    "raysync submit job.yaml": lambda desk: desk.type("raysync list --state failed").stdout,
    "raysync submit job.yaml --follow": lambda desk: desk.help("submit") + desk.help(""),
    "raysync submit job.yaml --working-dir ./my_code": lambda desk: desk.help("submit"),
    "raysync token create NAME": lambda desk: desk.type("raysync list --token rs_wrong").stderr,
    "raysync token create NAME --role admin": unsafe,
    "raysync token list": lambda desk: desk.help("token revoke"),
    "raysync watch {}": lambda desk: desk.type("raysync submit job.yaml").stderr,
    "tensorboard --logdir ~/raysync_results": lambda desk: desk.help("run"),
}
"""Where each command appears: what is returned holds it."""


def test_every_printed_command_has_its_place_here() -> None:
    assert templates() == APPEARS.keys() | ELSEWHERE.keys()
    for test in ELSEWHERE.values():
        path, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / path).read_text()


def as_printed(template: str, output: str) -> set[str]:
    """Return the command as it stands in an output, each time it does."""
    if "{}" in template:
        return {found.strip() for found in pattern_of(template).findall(output)}
    return {template} if template in output else set()


LASTING = ("raysync serve", "tensorboard --logdir ~/raysync_results")
"""These run until they are ended: they have a test of their own."""


@pytest.mark.parametrize("template", sorted(APPEARS.keys() - {*LASTING}))
def test_a_printed_command_works_as_printed(desk: Desk, example: str, template: str) -> None:
    assert example == "digits-1a2b3c4d"
    output = APPEARS[template](desk)
    printed = as_printed(template, output)
    assert printed, f"{template!r} is not in {output!r}"
    with desk.finishing() if re.search("watch|follow", template) else contextlib.nullcontext():
        for text in printed:
            done = desk.type(text)
            assert done.exit_code == 0, f"{text}: {done.output}{done.stderr}"


def test_the_undo_undoes(desk: Desk) -> None:
    id = desk.job()
    for change in ("delta=inf", "delta=0.5"):  # 0.3 to infinity, and infinity to 0.5
        before = desk.type(f"raysync set {id}").stdout
        told = desk.type(f"raysync set {id} {change}").stderr
        assert desk.type(told.partition("undo with: ")[2]).exit_code == 0
        values = desk.type(f"raysync set {id}").stdout
        assert values.partition("\n")[2] == before.partition("\n")[2]
        desk.type(f"raysync set {id} delta=inf")


def test_where_the_service_was_named_the_printed_command_names_it(desk: Desk) -> None:
    here = {"RAYSYNC_URL": None, "RAYSYNC_DATA": str(desk.folder / "nobody")}
    told = desk.type(f"raysync submit job.yaml --url {desk.server.url}", **here).stderr
    printed = told.partition("watch it with: ")[2]
    assert f"--url {desk.server.url}" in printed
    with desk.finishing():
        assert desk.type(printed, **here).exit_code == 0


@pytest.mark.parametrize(
    "line", [line for line in readme_commands() if line.split()[1] not in ("run", "serve", "tune")]
)
def test_a_command_of_the_readme_works_as_printed(desk: Desk, line: str) -> None:
    id = desk.job()
    with desk.finishing() if re.search("watch|follow", line) else contextlib.nullcontext():
        done = desk.type(re.sub(r"\bID\b", id, line))
    assert done.exit_code == 0, f"{line}: {done.output}{done.stderr}"


@pytest.mark.slow
def test_raysync_serve_works_as_printed(desk: Desk, tmp_path: Path) -> None:
    """With all that it needs in the environment; the Ray it is to join is not there, so none is started."""
    assert as_printed("raysync serve", no_service(desk))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {**os.environ, "RAYSYNC_DATA": str(tmp_path / "own"), "RAYSYNC_STORAGE": str(tmp_path / "jobs")}
    env |= {"RAYSYNC_PORT": str(port), "RAYSYNC_RAY_ADDRESS": "127.0.0.1:1", "PYTHONPATH": str(ROOT)}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(shlex.split(f"{BIN}/raysync serve"), env=env, stdout=log, stderr=log, cwd=tmp_path)
    try:
        until(lambda: answers(f"http://127.0.0.1:{port}/healthz"), 60)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
    assert "raysync serves at" in (tmp_path / "log").read_text()


def answers(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return bool(httpx.get(url).status_code == 200)
    return False


@pytest.mark.slow
def test_tensorboard_works_as_printed(desk: Desk) -> None:
    text = "tensorboard --logdir ~/raysync_results"
    assert text in APPEARS[text](desk)
    env = {**os.environ, "HOME": str(desk.folder), "PATH": f"{BIN}:{os.environ['PATH']}"}
    log = desk.folder / "tensorboard.log"
    with log.open("wb") as file:
        process = subprocess.Popen(["sh", "-c", f"exec {text}"], env=env, stdout=file, stderr=file)
    try:
        deadline_s = time.monotonic() + 60
        while not re.search(r"at http://localhost:\d+|port \d+ .*in use", log.read_text()):
            assert process.poll() is None or "in use" in log.read_text(), log.read_text()
            assert time.monotonic() < deadline_s, log.read_text()
            time.sleep(0.2)
    finally:
        process.terminate()
        process.wait(30)

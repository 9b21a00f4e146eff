"""`raysync run` as a user meets it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ray

from actors.storage.folder import Folder, read_manifest
from tests.serving import until

BIN = Path(sys.executable).parent
SPEC = {
    "name": "from-cli",
    "task": {"kind": "digits", "hidden": [16]},
    "strategy": {"kind": "selsync", "delta": 0.3},
    "scale": {"workers": 2, "shards_in": "workers"},
    "budget": {"steps": 60},
    "eval": {"every": 20},
}


def run(*arguments: object, timeout_s: float = 110, **options: object) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "raysync"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=_env(), **options)  # type: ignore[call-overload, no-any-return]


def _env() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | {"COLUMNS": "120"}


@pytest.fixture
def address(local_ray: None) -> str:
    """Where the tests' own Ray is: joining it is quicker than starting another."""
    return str(ray.get_runtime_context().gcs_address)


def test_help_teaches_and_answers_at_once() -> None:
    run("--help")
    started_s = time.monotonic()
    answer = run("run", "--help")
    assert time.monotonic() - started_s < 1.0
    assert all(word in answer.stdout for word in ("Ctrl-C", "--resume", "--working-dir", "Exit codes"))


def test_a_wrong_specification_is_named_and_nothing_starts(tmp_path: Path) -> None:
    spec = tmp_path / "job.json"
    spec.write_text(json.dumps({**SPEC, "strategy": {"kind": "selsync", "dleta": 0.3}}))
    answer = run("run", spec)
    assert answer.returncode == 2
    assert "did you mean 'delta'?" in answer.stderr
    assert run("run", tmp_path / "absent.yaml").returncode == 2
    assert run("run").returncode == 2


def test_ctrl_c_leaves_a_checkpoint_and_resume_goes_on(tmp_path: Path, address: str) -> None:
    spec, storage = tmp_path / "job.json", tmp_path / "results"
    spec.write_text(json.dumps({**SPEC, "budget": {"steps": 100_000}}))
    command = [str(BIN / "raysync"), "run", str(spec), "--storage", str(storage), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_env())
    assert process.stdout is not None
    for line in process.stdout:
        record = json.loads(line)
        if record["kind"] == "metrics" and record["step"] > 20:
            break
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=60)
    result = json.loads(rest.splitlines()[-1])
    assert process.returncode == 130, errors
    assert "Token authentication" not in errors, "Ray's notice, though it started a Ray of its own"
    assert (result["state"], result["reason"]) == ("STOPPED", "interrupted")
    assert all(json.loads(line).get("step", 0) < 100_000 for line in rest.splitlines()[1:])
    step = read_manifest(Folder(result["checkpoint"]))["step"]
    assert step > 20

    spec.write_text(json.dumps({**SPEC, "budget": {"steps": step + 30}}))
    answer = run("run", spec, "--resume", result["checkpoint"], "--storage", storage, "--address", address)
    assert answer.returncode == 0, answer.stderr
    assert "SUCCEEDED" in answer.stdout
    assert "model" in answer.stdout
    (events,) = [path for path in storage.glob("*/events.jsonl") if str(path.parent) not in result["checkpoint"]]
    records = [json.loads(line) for line in events.read_text().splitlines()]
    trained = {record["step"] for record in records if record["kind"] == "metrics" and record["worker"] is None}
    assert trained == {*range(step + 1, step + 30)}, "it must really go on, not end where it was stopped"


def test_what_an_interrupted_run_prints_goes_on(tmp_path: Path, address: str) -> None:
    """`raysync run job.yaml` and the command it prints at its end, both as printed; code of one's own goes along."""
    code = tmp_path / "my code"
    code.mkdir()
    (code / "naps.py").write_text(
        "import time\nfrom raysync.tasks import Digits\n"
        "class Nap(Digits):\n"
        "    def loss(self, model, batch):\n        time.sleep(0.01)\n        return super().loss(model, batch)\n"
    )
    task = {"kind": "custom", "entrypoint": "naps:Nap"}
    (tmp_path / "job.yaml").write_text(json.dumps({**SPEC, "task": task, "budget": {"steps": 300}}))
    options = ["--working-dir", "my code", "--storage", "results", "--address", address]
    command = [str(BIN / "raysync"), "run", "job.yaml", *options]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_env(), cwd=tmp_path
    )
    until(lambda: any('"metrics"' in path.read_text() for path in tmp_path.glob("results/*/events.jsonl")), 60)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    printed = output.partition("go on with: ")[2].strip()
    assert printed.startswith("raysync run --resume ")
    answer = run(*shlex.split(printed)[1:], cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert "SUCCEEDED" in answer.stdout


def test_a_run_that_fails_says_why(tmp_path: Path, address: str) -> None:
    spec = tmp_path / "job.json"
    spec.write_text(json.dumps({**SPEC, "task": {"kind": "custom", "entrypoint": "nowhere:Task"}}))
    answer = run("run", spec, "--storage", tmp_path, "--address", address)
    assert answer.returncode == 1
    assert "FAILED" in answer.stdout
    assert "nowhere:Task: cannot be imported" in answer.stderr
    assert "Traceback" not in answer.stderr, "the log has it"
    folder = next(path for path in tmp_path.iterdir() if path.name.startswith("from-cli-"))
    assert json.loads((folder / "status.json").read_text())["state"] == "FAILED"


def test_interrupted_before_it_starts_leaves_no_mess(tmp_path: Path) -> None:
    spec = tmp_path / "job.json"
    spec.write_text(json.dumps(SPEC))
    command = [str(BIN / "raysync"), "run", str(spec), "--storage", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_env())
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    until(children.read_text)  # it has begun to start a Ray
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors

"""README's job and README's Python, as they stand there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from raysync.sim import Simulation
from tests.jobs import job
from tests.ray_nodes import BIN

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def job_yaml(folder: Path) -> Path:
    """Write README's job.yaml."""
    path = folder / "job.yaml"
    path.write_text(next(block for block in re.findall(r"```yaml\n(.*?)```", README, re.S) if "# job.yaml" in block))
    return path


def test_without_a_ray_it_says_so_at_once(tmp_path: Path) -> None:
    """Ray by itself would wait for the last cluster it remembers, for ever."""
    code = (
        "from actors import submit; from raysync.spec import read_spec; "
        f"submit(read_spec({str(job_yaml(tmp_path))!r}), storage_path={str(tmp_path)!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert "ray.init(address=...)" in done.stderr
    assert done.returncode == 1


@pytest.mark.matrix
@pytest.mark.timeout(240)
def test_the_python_of_the_readme_runs_as_it_stands(tmp_path: Path) -> None:
    job_yaml(tmp_path)
    code = next(block for block in re.findall(r"```python\n(.*?)```", README, re.S) if "submit(" in block)
    env = {
        "PYTHONPATH": str(ROOT),
        "HOME": str(tmp_path),
        "PATH": "/usr/bin:/bin",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=220
    )
    assert done.returncode == 0, done.stderr
    assert re.match(r"0\.9\d+ direct", done.stdout)


@pytest.mark.matrix
@pytest.mark.timeout(240)
def test_the_readmes_own_search_finds_a_job(tmp_path: Path) -> None:
    blocks = {kind: re.findall(rf"```{kind}\n(.*?)```", README, re.S) for kind in ("python", "yaml")}
    (tmp_path / "my_code").mkdir()
    task = next(block for block in blocks["python"] if "class MyTask" in block)
    (tmp_path / "my_code" / "my_module.py").write_text(task)
    (tmp_path / "search.yaml").write_text(next(block for block in blocks["yaml"] if "# search.yaml" in block))
    command = [BIN / "raysync", "tune", "search.yaml", "--working-dir", "my_code", "--storage", "studies", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=220)
    assert done.returncode == 0, done.stderr + done.stdout[-2000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["state"], result["trials"]) == ("SUCCEEDED", 8)
    assert result["front"]
    assert "x fewer bytes" in result["reason"]


def test_the_readmes_own_model_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block = next(block for block in re.findall(r"```python\n(.*?)```", README, re.S) if "class MyTask" in block)
    (tmp_path / "my_module.py").write_text(block)
    monkeypatch.syspath_prepend(str(tmp_path))
    task = {"kind": "custom", "entrypoint": "my_module:MyTask", "args": {"width": 32}}
    found = Simulation(job({"kind": "bsp"}, task=task, budget={"steps": 300}, eval={"every": 300})).run().metrics
    assert found["eval/error"] < 0.5

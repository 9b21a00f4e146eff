"""README's curl commands, pasted in order into a shell."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from tests.service.conftest import tokens_for, until
from tests.service.still_runtime import StillRuntime
from tests.service.test_client import Server

README = (Path(__file__).parents[2] / "README.md").read_text()


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_readmes_curl_lines_work_as_they_stand(tmp_path: Path) -> None:
    (block,) = [block for block in README.split("```")[1::2] if "curl -s" in block and block.startswith("\n")]
    runtime = StillRuntime()
    server = Server(tmp_path, runtime)

    def train() -> None:
        until(lambda: bool(runtime.alive))
        (id,) = runtime.alive
        until(lambda: server.store.jobs.get(id).knob_version >= 2)
        runtime.enter(id, "RUNNING")
        for step in range(60):
            runtime.tell(id, "metrics", {"train/loss": 1.0}, step=step)

    training = threading.Thread(target=train)
    training.start()
    try:
        script = block.replace("http://127.0.0.1:8420", server.url)
        assert script != block, "the address is the one `raysync serve` has by default"
        done = subprocess.run(
            ["bash", "-c", f"set -eu\n{script}"],
            env={"RAYSYNC_TOKEN": tokens_for(server.store)["operator"], "PATH": "/usr/bin:/bin:/usr/local/bin"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        training.join(20)
        assert done.returncode == 0, done.stderr
        turned, end = json.JSONDecoder().raw_decode(done.stdout)
        scaled, _ = json.JSONDecoder().raw_decode(done.stdout[end:])
        assert turned["values"]["delta"] == 0.5
        assert scaled["knobs"]["workers"] == 3
        assert "event: metrics" in done.stdout
        (job,) = runtime.alive.values()
        assert job.stopped is not None
    finally:
        server.stop()

"""Codecs are ready when an actor is built, and only one process of a machine compiles them."""

from __future__ import annotations

import fcntl
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from actors.shell import kernels as shell
from raysync import compress
from raysync.spec import Compression, parse_spec

ONEBIT = {"push": {"kind": "onebit"}, "pull": {"kind": "onebit"}}

_BUILT = """
import sys
from actors.shell.shard import shard_seat
from actors.shell.worker import WorkerSeat
from actors.storage.folder import Folder
from raysync.address import shard, worker
from raysync.spec import parse_spec

spec = parse_spec({"task": {"kind": "digits"}, "compression": {"push": {"kind": "onebit"}}})
if sys.argv[1] == "shard":
    shard_seat(shard(0), spec, Folder(sys.argv[2]), None)
else:
    WorkerSeat(worker(0), spec, "cpu", Folder(sys.argv[2]), None)
from raysync.compress import kernels
print(kernels.num_loaded())
"""


@pytest.mark.parametrize("role", ["shard", "worker"])
def test_whoever_is_built_has_its_codecs_ready(role: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _BUILT, role, str(tmp_path)], capture_output=True, text=True, check=True, timeout=60
    )
    assert int(done.stdout) >= 3


def test_what_was_compiled_is_said_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    from raysync.compress import kernels

    compression = parse_spec({"task": {"kind": "digits"}, "compression": ONEBIT}).compression
    with caplog.at_level(logging.WARNING, "actors"):
        for compiled in (4, 0):
            monkeypatch.setattr(kernels, "num_compiled", lambda compiled=compiled: compiled)
            shell.prepare_codecs(compression)
    (said,) = [record.message for record in caplog.records]
    assert said.startswith("compiled 4 kernels for onebit in ")


def test_processes_take_turns_but_no_process_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "_WAIT_S", 0.3)
    lock = Path(compress.__file__).parent / "__pycache__" / "kernels.lock"
    lock.parent.mkdir(exist_ok=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        shell.prepare_codecs(Compression())
        waiting = subprocess.Popen(
            [sys.executable, "-c", "from actors.shell.kernels import _one_at_a_time as one\nwith one(): print('mine')"],
            stdout=subprocess.PIPE,
        )
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(2.0)
        fcntl.flock(held, fcntl.LOCK_UN)
    assert waiting.communicate(timeout=30)[0] == b"mine\n"

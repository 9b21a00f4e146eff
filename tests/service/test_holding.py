"""Two services do not share a folder or an address, and the second does nothing before it is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from service.errors import AddressTaken, FolderTaken
from service.server.lock import bound_socket, held_folder

BIN = Path(sys.executable).parent


def test_a_folder_is_held_by_one_and_free_after_it(tmp_path: Path) -> None:
    taken = pytest.raises(FolderTaken, match=rf"http://127.0.0.1:1, process {os.getpid()}")
    with held_folder(tmp_path, "http://127.0.0.1:1"), taken, held_folder(tmp_path, "x"):
        pass
    with held_folder(tmp_path, "x"):
        pass


def test_an_address_is_taken_by_one() -> None:
    with bound_socket("127.0.0.1", 0) as first, pytest.raises(AddressTaken, match="give another --port"):
        bound_socket("127.0.0.1", first.getsockname()[1])
    with pytest.raises(AddressTaken):
        bound_socket("no-such-host.invalid", 1)


def test_a_second_service_is_refused_before_it_touches_anything(tmp_path: Path) -> None:
    env = {**os.environ, "RAYSYNC_DATA": str(tmp_path)}
    with held_folder(tmp_path, "http://127.0.0.1:8420"):
        done = subprocess.run([BIN / "raysync", "serve"], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert "runs already (http://127.0.0.1:8420" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["serving"]

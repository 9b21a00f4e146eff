"""A service that is told to end, on real Ray: by SIGTERM and Ctrl-C, with a database that is locked or full."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
from pathlib import Path

import pytest

from tests.serving import Service


def end(service: Service, sent: signal.Signals) -> int:
    assert service.process is not None
    service.process.send_signal(sent)
    return service.process.wait(60)


@pytest.mark.matrix
@pytest.mark.timeout(240)
def test_told_to_end_it_takes_its_ray_with_it_whatever_the_database_does(tmp_path: Path) -> None:
    """Nothing runs: first SIGTERM with everything well, then with the database locked, then Ctrl-C with it full."""
    books = tmp_path / "books"
    books.mkdir()
    is_small = (
        os.geteuid() == 0 and not subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", books]).returncode
    )
    service = Service(tmp_path / "service", f"--database=sqlite:///{books}/raysync.db")
    try:
        service.start()
        assert service.ray.is_up
        assert end(service, signal.SIGTERM) == 0
        assert not service.ray.is_up
        assert "stopped, and its Ray with it" in service.log

        service.start()
        with sqlite3.connect(books / "raysync.db", isolation_level=None) as other:
            other.execute("BEGIN EXCLUSIVE")
            assert end(service, signal.SIGTERM) == 0
            other.execute("ROLLBACK")
        other.close()
        assert not service.ray.is_up

        if is_small:
            service.start()
            with (books / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(b"\0" * 4096)
            end(service, signal.SIGINT)
            (books / "filler").unlink()
            assert not service.ray.is_up
        assert service.log.count("stopped, and its Ray with it") == 2 + is_small
    finally:
        service.close()
        if is_small:
            subprocess.run(["umount", "--lazy", books], check=True)

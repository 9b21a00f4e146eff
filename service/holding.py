"""What a service holds while it runs, taken before anything is started: its data folder and its address."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from service.errors import AddressTaken, FolderTaken


@contextlib.contextmanager
def held_folder(folder: Path, url: str) -> Iterator[None]:
    """Hold a data folder; the system lets go of it when this process ends, however it ends."""
    with (folder / "serving").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise FolderTaken(str(folder), file.read().strip()) from None
        file.truncate(0)
        file.write(f"{url}, process {os.getpid()}")
        file.flush()
        yield


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a socket that has an address; nobody is let in before somebody listens."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise AddressTaken(host, port, error.strerror or str(error)) from None
    return bound

"""What a service holds while it runs, taken before anything is started: its data folder and its address."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from service.errors import AddressTaken, FolderTaken

_BACKLOG = 2048


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
    """Return a socket that listens: no other process can then; clients that come early wait until the service is up."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        bound = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except (OSError, UnicodeError) as error:
        raise AddressTaken(host, port, getattr(error, "strerror", None) or str(error)) from None
    return bound

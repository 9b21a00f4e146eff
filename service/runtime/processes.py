"""Processes by number and birth: a number may be given to another process later, a birth cannot."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path


def born(pid: int) -> str | None:
    """Return when a living process started, in the kernel's ticks; None if there is none, or only its remains."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


def own_id() -> str:
    """Return a name for this process that others on the same machine can tell to be dead."""
    return f"{_here()}/{os.getpid()}/{born(os.getpid())}/{secrets.token_hex(4)}"


def is_dead(id: str) -> bool:
    """Return whether the process of this name ran on this machine and runs no more."""
    host, _, rest = id.partition("/")
    pid, _, rest = rest.partition("/")
    birth = rest.partition("/")[0]
    return host == _here() and pid.isdigit() and born(int(pid)) != birth


def _here() -> str:
    """Return this machine and, of its containers, the one whose process numbers we see."""
    return f"{socket.gethostname()[:24]}:{os.stat('/proc/self/ns/pid').st_ino}"

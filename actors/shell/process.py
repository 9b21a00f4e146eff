"""What tells Ray's processes apart before they are actors, where some wait for the next job with their imports done;
and what their machine says of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

WARMING = "WARMING_FILE"
"""The variable that names the file which is there while processes are started to wait."""
KIND = "RAYSYNC_PROCESS"
"""The variable that says what a process is for."""
SMALL = "small"
SMALL_ENV: dict[str, Any] = {"env_vars": {KIND: SMALL}}
"""The runtime environment of processes that do not compute: they do not import torch while they wait. Such a process
must make no actors, since those inherit its environment, with which a process takes a second longer to start.
"""


def is_stopped(pid: int) -> bool:
    """Return whether a process of this machine is stopped; False where the machine does not tell."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False

"""Codecs made ready while an actor is built: compiled by one process of a machine, loaded by all others."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from raysync import compress
from raysync.spec import Compression

_FOLDER = Path(compress.__file__).parent / "__pycache__"
"""Where numba keeps what it has compiled."""
_WAIT_S = 120.0
"""For so long a process waits for another one that compiles; then it compiles for itself."""

logger = logging.getLogger(__name__)


def prepare_codecs(compression: Compression) -> None:
    """Have the codecs of a job ready, and say so if their kernels had to be compiled for that."""
    codecs, started_s = (compression.push, compression.pull), time.monotonic()
    with contextlib.nullcontext() if _are_compiled() else _one_at_a_time():
        for codec in codecs:
            codec.prepare()
    kernels = sys.modules.get("raysync.compress.kernels")
    if kernels is not None and (compiled := kernels.num_compiled()):
        took_s, names = time.monotonic() - started_s, " and ".join(sorted({codec.kind for codec in codecs}))
        logger.warning("compiled %d kernels for %s in %.1f s; later starts load them", compiled, names, took_s)


def _are_compiled() -> bool:
    """Return whether a process has left compiled kernels here: then all may load them at the same time."""
    return any(_FOLDER.glob("kernels.*.nbi"))


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Keep two processes from compiling the same; where no file can be locked, or for too long, they do."""
    lock: TextIO | None = None
    with contextlib.suppress(OSError):
        _FOLDER.mkdir(exist_ok=True)
        lock = (_FOLDER / "kernels.lock").open("w")
    with lock or contextlib.nullcontext():
        deadline_s = time.monotonic() + _WAIT_S
        while lock is not None and time.monotonic() < deadline_s:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                time.sleep(0.05)
        yield

"""Processes that wait for the next job: started by Ray, their imports done, before an actor is asked for.

Ray uses such a process for an actor of the same runtime environment, if it has never run anything. It starts no more of
them at once than the machine has cores, so a pool is filled in small steps, while nothing else starts. How many wait is
seen, not remembered: whoever else uses the node may take them or leave some behind.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import ray

from actors.shell.process import KIND, SMALL, SMALL_ENV

_KEEP_S = 86_400
"""For so long an unused process is kept where Ray would end it."""
_QUIET_S = 2.0
"""So long no process has come or gone: no job is starting now, and the pool may be filled."""
_STARTED_S = 15.0
"""For so long a process may take to come up before the next one is asked for."""
_LOOK_S = 0.2
_IMPORTS_S = 1.5
"""So long processes that have come up import; the next ones would only compete with them."""
_EVERY_S = 10.0
"""So often the pool is looked at."""
_ANSWER_S = 5.0
_IDLE = b"ray::IDLE"
_IMPORTED = b"libtorch_cpu"
_PROC = Path("/proc")

logger = logging.getLogger(__name__)


class Processes(NamedTuple):
    """How many processes: for coordinators, and for all others."""

    others: int
    small: int


class WarmPool:
    """Keeps processes ready on the node this process is connected to; a Ray that cannot do that is left alone.

    `sign` is the file that tells processes of this node to import while they wait (`actors.preload`).
    """

    def __init__(self, size: Processes, sign: Path) -> None:
        self._size, self._sign = size, sign
        self._wake, self._is_closed = threading.Event(), False
        self.is_full = False
        """Whether no process was missing when last looked."""
        threading.Thread(target=self._live, name="warm pool", daemon=True).start()

    def took(self) -> None:
        """A job was started, and has taken some."""
        self.is_full = False
        self._wake.set()

    def close(self) -> None:
        """Leave the processes that wait, and replace none any more."""
        self._is_closed = True
        self._wake.set()

    def _live(self) -> None:
        try:
            node = _Node()
        except Exception:  # whatever a Ray of another version lacks: jobs start all the same, only later
            logger.warning("no processes are kept warm: this Ray cannot be asked for them", exc_info=True)
            self._sign.unlink(missing_ok=True)
            return
        while not self._is_closed:
            try:
                self._fill(node)
            except Exception as error:  # a node that does not answer now
                logger.info("the pool of warm processes is filled later: %s", error)
            finally:
                self._sign.unlink(missing_ok=True)
            self._wake.wait(_EVERY_S)
            self._wake.clear()

    def _fill(self, node: _Node) -> None:
        node.wait_until_quiet(_QUIET_S)
        while node.is_quiet:
            small, others = (
                max(0, size - there) for size, there in zip(self._size[::-1], node.waiting()[::-1], strict=True)
            )
            self.is_full = not small and not others
            if self.is_full:
                return
            at_once = os.cpu_count() or 1
            self._sign.touch()
            if small:
                node.start(min(at_once, small), SMALL_ENV)
            else:
                node.start(min(at_once, others), None)


class _Node:
    """Ray's own process on this node, asked as Ray's libraries ask it, and its processes as the kernel shows them."""

    def __init__(self) -> None:
        from ray._private.grpc_utils import init_grpc_channel
        from ray.core.generated import common_pb2, node_manager_pb2, node_manager_pb2_grpc

        here = ray.get_runtime_context().get_node_id()
        node = next(node for node in ray.nodes() if node["NodeID"] == here)
        channel = init_grpc_channel(f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}")
        self._stub: Any = node_manager_pb2_grpc.NodeManagerServiceStub(channel)
        self._messages: Any = node_manager_pb2
        self._python = common_pb2.PYTHON
        self._known: set[int] = set()

    def start(self, count: int, env: dict[str, Any] | None) -> None:
        """Start processes, and wait until they have come up and imported."""
        from ray.runtime_env import RuntimeEnv

        wanted = len(self._pids()) + count
        request = self._messages.PrestartWorkersRequest(
            language=self._python, num_workers=count, keep_alive_duration_secs=_KEEP_S
        )
        if env is not None:
            request.runtime_env_info.serialized_runtime_env = RuntimeEnv(**env).serialize()
        self._stub.PrestartWorkers(request, timeout=_ANSWER_S)
        deadline_s = time.monotonic() + _STARTED_S
        while len(self._pids()) < wanted and time.monotonic() < deadline_s:
            time.sleep(_LOOK_S)
        time.sleep(_IMPORTS_S)
        self._known = self._pids()

    def waiting(self) -> Processes:
        """Return how many processes wait with their imports done."""
        kinds = [_kind(pid) for pid in self._pids()]
        return Processes(kinds.count("other"), kinds.count(SMALL))

    @property
    def is_quiet(self) -> bool:
        """Whether no process has come or gone but those that were started here."""
        return self._pids() == self._known

    def wait_until_quiet(self, for_s: float) -> None:
        """Wait until no process has come or gone for so long."""
        since_s = time.monotonic()
        while time.monotonic() - since_s < for_s:
            time.sleep(_LOOK_S)
            if not self.is_quiet:
                self._known, since_s = self._pids(), time.monotonic()

    def _pids(self) -> set[int]:
        return {*self._stub.GetWorkerPIDs(self._messages.GetWorkerPIDsRequest(), timeout=_ANSWER_S).pids}


def _kind(pid: int) -> str | None:
    """Return what a process waits for: to be a coordinator (`small`) or another actor; None if it does not wait, or has
    not imported anything.
    """
    folder = _PROC / str(pid)
    with contextlib.suppress(OSError):
        if not (folder / "cmdline").read_bytes().startswith(_IDLE):
            return None
        if f"{KIND}={SMALL}".encode() in (folder / "environ").read_bytes():
            return SMALL
        return "other" if _IMPORTED in (folder / "maps").read_bytes() else None
    return None

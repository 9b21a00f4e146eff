"""Processes that wait for the next job: started by Ray, their imports done, before an actor is asked for.

Ray uses such a process for an actor of the same runtime environment, if it has never run anything. It starts no more of
them at once than the machine has cores, so a pool is filled in small steps, while nothing else starts.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import ray

from actors.shell.process import SMALL_ENV
from raysync.address import Role
from raysync.control.placing import servers_of
from raysync.control.roles import ROLES
from raysync.spec import JobSpec

_KEEP_S = 86_400
"""For so long an unused process is kept where Ray would end it."""
_QUIET_S = 2.0
"""So long no process has come or gone: no job is starting now, and the pool may be filled."""
_STARTED_S = 15.0
"""For so long a process may take to come up before the next one is asked for."""
_LOOK_S = 0.2
_IMPORTS_S = 1.5
"""So long processes that have come up import; the next ones would only compete with them."""
_ANSWER_S = 5.0

logger = logging.getLogger(__name__)


class Processes(NamedTuple):
    """How many processes: for coordinators, and for all others."""

    others: int
    small: int


def taken_by(spec: JobSpec) -> Processes:
    """Return what the start of a job takes, its controller among them."""
    inside = Role.SHARD if spec.scale.shards_in == "workers" else None
    servers = Counter(ROLES[server.role].computes for server in servers_of(spec) if server.role is not inside)
    return Processes(servers[True] + spec.scale.workers + 1, servers[False])


class WarmPool:
    """Keeps processes ready on the node this process is connected to; a Ray that cannot do that is left alone.

    `sign` is the file that tells processes of this node to import while they wait (`actors.preload`).
    """

    def __init__(self, size: Processes, sign: Path) -> None:
        self._size, self._missing, self._sign = size, size, sign
        self._changed = threading.Condition()
        threading.Thread(target=self._live, name="warm pool", daemon=True).start()

    @property
    def is_full(self) -> bool:
        """Whether no process is missing."""
        return not any(self._missing)

    def took(self, taken: Processes) -> None:
        """A job was started: what it took is replaced, once it runs."""
        with self._changed:
            more = zip(self._size, self._missing, taken, strict=True)
            self._missing = Processes(*(min(size, missing + took) for size, missing, took in more))
            self._changed.notify_all()

    def _live(self) -> None:
        try:
            node = _Node()
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: not self.is_full)
                node.wait_until_quiet(_QUIET_S)
                while not self.is_full and node.is_quiet:
                    self._fill_some(node)
        except Exception:  # whatever a Ray of another version says to it: jobs start all the same, only later
            logger.info("no processes are kept warm", exc_info=True)

    def _fill_some(self, node: _Node) -> None:
        with self._changed:
            at_once = os.cpu_count() or 1
            small = min(at_once, self._missing.small)
            others = 0 if small else min(at_once, self._missing.others)
            self._missing = Processes(self._missing.others - others, self._missing.small - small)
        self._sign.touch()
        try:
            node.start(others, None)
            node.start(small, SMALL_ENV)
        finally:
            self._sign.unlink(missing_ok=True)


class _Node:
    """Ray's own process on this node, asked as Ray's libraries ask it."""

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
        """Start processes, and wait until they are up."""
        if not count:
            return
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

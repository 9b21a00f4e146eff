"""Processes that wait for the next job: started by Ray, their imports done, before an actor is asked for.

Ray uses such a process for an actor of the same runtime environment, if it has never run anything. It starts no more of
them at once than the machine has cores, so a pool is filled in small steps, beside whatever runs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import Counter
from typing import Any, NamedTuple

import ray

from actors.shell.process import for_computing
from raysync.address import Role
from raysync.control.placing import servers_of
from raysync.control.roles import ROLES
from raysync.spec import JobSpec

_KEEP_S = 86_400
"""For so long an unused process is kept where Ray would end it."""
_SETTLE_S = 5.0
"""A pool is filled again so long after a job took from it: the job's own start comes first."""
_STARTED_S = 15.0
"""For so long a process may take to come up before the next one is asked for."""
_ANSWER_S = 5.0

logger = logging.getLogger(__name__)


class Processes(NamedTuple):
    """How many processes: such that compute, and others."""

    computing: int
    plain: int


def taken_by(spec: JobSpec) -> Processes:
    """Return what the start of a job takes, its controller among them."""
    inside = Role.SHARD if spec.scale.shards_in == "workers" else None
    servers = Counter(ROLES[server.role].computes for server in servers_of(spec) if server.role is not inside)
    return Processes(servers[True] + spec.scale.workers, servers[False] + 1)


def start_ahead(spec: JobSpec) -> None:
    """Let this node's Ray start processes for a job that is about to be submitted, while its controller comes up."""

    def start() -> None:
        with contextlib.suppress(Exception):  # as below: it would only have been faster
            _Node().start(computing=min(os.cpu_count() or 1, taken_by(spec).computing), plain=0)

    threading.Thread(target=start, name="start ahead", daemon=True).start()


class WarmPool:
    """Keeps processes ready on the node this process is connected to; a Ray that cannot do that is left alone."""

    def __init__(self, size: Processes) -> None:
        self._size, self._wanted = size, size
        self._changed = threading.Condition()
        self._quiet_until_s = 0.0
        threading.Thread(target=self._live, name="warm pool", daemon=True).start()

    def took(self, spec: JobSpec) -> None:
        """A job was started: what it took is replaced, once it runs."""
        taken = taken_by(spec)
        with self._changed:
            more = (have + took for have, took in zip(self._wanted, taken, strict=True))
            self._wanted = Processes(*(min(size, count) for size, count in zip(self._size, more, strict=True)))
            self._quiet_until_s = time.monotonic() + _SETTLE_S
            self._changed.notify_all()

    def _live(self) -> None:
        try:
            node = _Node()
            while True:
                self._fill_some(node)
        except Exception:  # whatever a Ray of another version says to it: jobs start all the same, only later
            logger.info("no processes are kept warm", exc_info=True)

    def _fill_some(self, node: _Node) -> None:
        with self._changed:
            self._changed.wait_for(lambda: any(self._wanted))
            pause_s = self._quiet_until_s - time.monotonic()
            if pause_s > 0:
                self._changed.wait(pause_s)
                return
            at_once = os.cpu_count() or 1
            plain = min(at_once, self._wanted.plain)
            computing = min(at_once, self._wanted.computing) if not plain else 0
        node.start(computing=computing, plain=plain)
        with self._changed:
            self._wanted = Processes(max(0, self._wanted.computing - computing), max(0, self._wanted.plain - plain))


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

    def start(self, computing: int, plain: int) -> None:
        """Start processes, and wait until they are up."""
        from ray.runtime_env import RuntimeEnv

        before = self._count()
        for count, env in ((computing, for_computing({})), (plain, None)):
            if count:
                request = self._messages.PrestartWorkersRequest(
                    language=self._python, num_workers=count, keep_alive_duration_secs=_KEEP_S
                )
                if env is not None:
                    request.runtime_env_info.serialized_runtime_env = RuntimeEnv(**env).serialize()
                self._stub.PrestartWorkers(request, timeout=_ANSWER_S)
        deadline_s = time.monotonic() + _STARTED_S
        while self._count() < before + computing + plain and time.monotonic() < deadline_s:
            time.sleep(0.2)

    def _count(self) -> int:
        return len(self._stub.GetWorkerPIDs(self._messages.GetWorkerPIDsRequest(), timeout=_ANSWER_S).pids)

"""The gateway: a process of its own that answers a control plane's questions about jobs on a Ray cluster.

A control plane that joined the cluster itself would die with it, and would load what Ray loads. So it starts this
process, and they talk over a socket in a folder only their user can enter: `raysync.questions`, no pickle. The
gateway holds no state: it may be killed and started again at any moment.

    python -m actors.gateway ADDRESS SOCKET PARENT [WARM]
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import ray
import zmq
import zmq.asyncio
from ray.exceptions import RayError

from actors.api.fit import join
from actors.api.job import Job, find, submit
from actors.job.actor_group import CONTROLLER, clear_leftovers
from actors.job.warm_pool import Processes, WarmPool
from actors.shell.process import WARMING
from actors.storage.files import read_piece, takeable
from actors.storage.folder import Folder, completed, read_manifest
from actors.storage.journal import read_log, read_records
from raysync.control.states import JobState
from raysync.errors import NotRunning, RaysyncError
from raysync.knobs import Knobs
from raysync.ports import CheckpointSeen, FileSeen, JobStatus, Launch, LogPage, Records, Sighting
from raysync.questions import QUESTIONS, Answer, Ask, Greeting, failed
from raysync.runtime import Runtime
from raysync.spec import JobSpec

_LANES = {"ping": 1, "records": 256}
_THREADS = 64
"""Threads per method, and for all others together; they are made when needed. Questions that wait for a job to tell
something have their own, so that nothing waits behind them, least of all the ping that says this process lives."""
_SMALL = 1
"""Beside the processes kept warm so many are for a coordinator."""
_ORPHANED_S = 1.0
_PAGE = 2000

logger = logging.getLogger(__name__)


class Gateway(Runtime):
    """The runtime on a Ray cluster; each answer is bounded in time by what it calls. On a Ray of the control plane's
    own `warm` processes wait for the next job.
    """

    def __init__(self, warm: int = 0) -> None:
        self._pool = WarmPool(Processes(warm, _SMALL), Path(os.environ[WARMING])) if warm else None

    def ping(self) -> str:
        """Return the cluster's name, having heard from it."""
        ray.nodes()
        return cluster_name()

    def launch(self, order: Launch) -> str:
        """Start a job's controller unless it is there; return the cluster it is on."""
        found = _controller(order.job)
        if found is not None:
            if order.knobs is not None:
                found.take(order.knobs)
            return cluster_name()
        if order.again:
            clear_leftovers(order.job)
        env: dict[str, Any] = {
            **({"working_dir": order.working_dir} if order.working_dir else {}),
            **({"pip": list(order.pip)} if order.pip else {}),
        }
        spec = JobSpec.model_validate_json(order.spec)
        has_own = bool(completed(Folder(f"{order.storage.rstrip('/')}/{order.job}")))
        resume = _checkpoint(order.resume_from) if order.resume_from and not has_own else None
        try:
            submit(
                spec,
                storage_path=order.storage,
                job=order.job,
                runtime_env=env,
                resume_from=resume,
                knobs=order.knobs,
                is_warm=self._pool is not None,
            )
        except ValueError as error:
            if isinstance(error, RaysyncError) or _controller(order.job) is None:
                raise
            # another control plane was faster
        if self._pool is not None:
            self._pool.took()
        return cluster_name()

    def jobs(self) -> list[str]:
        """Return the jobs that have a controller here."""
        named = [entry["name"] for entry in ray.util.list_named_actors(all_namespaces=True)]
        return [name.removesuffix(f":{CONTROLLER}") for name in named if name.endswith(f":{CONTROLLER}")]

    def look(self, job: str, path: str) -> Sighting:
        """Return what is to be seen of a job."""
        has_controller = _controller(job) is not None
        folder = Folder(path)
        seen = Sighting(has_controller=has_controller, has_checkpoint=bool(completed(folder)))
        if folder.size("status.json") is None:
            return seen
        status = msgspec.json.decode(folder.read("status.json"))
        if not JobState(status["state"]).is_terminal:
            return seen
        return msgspec.structs.replace(seen, end=status["state"], end_reason=status["reason"])

    def records(self, job: str, after: int, wait_s: float) -> Records:
        """Return events numbered above `after`, waiting for one."""
        return Records(_job(job).records(after, _PAGE, wait_s))

    def written_records(self, path: str, offset: int) -> Records:
        """Return events from the journal in a job's folder."""
        return read_records(Folder(path), offset)

    def status(self, job: str) -> JobStatus:
        """Return what the controller tells."""
        return _job(job).status()

    def turn(self, job: str, changes: dict[str, Any], expected_version: int | None, dry_run: bool, by: str) -> Knobs:
        """Turn knobs."""
        return _job(job).turn(expected_version, dry_run=dry_run, by=by, **changes)

    def checkpoint(self, job: str) -> None:
        """Ask for a checkpoint."""
        _job(job).checkpoint()

    def stop(self, job: str, reason: str, force_after_s: float) -> None:
        """End a job."""
        _job(job).stop(reason, force_after_s=force_after_s)

    def forget(self, job: str) -> None:
        """Clear away what is left of a job on the cluster; its folder stays."""
        found = _controller(job)
        if found is not None:
            found.forget()
        clear_leftovers(job)

    def checkpoints(self, path: str) -> list[CheckpointSeen]:
        """Return the complete checkpoints in a job's folder, oldest first."""
        folder = Folder(path)
        return [_seen(folder.at(name), name) for name in completed(folder)]

    def log(self, path: str, offset: int | None, tail_lines: int) -> LogPage:
        """Return a page of a job's log."""
        return read_log(Folder(path), offset, tail_lines)

    def files(self, path: str) -> list[FileSeen]:
        """Return what may be taken along."""
        return takeable(Folder(path))

    def piece(self, path: str, name: str, offset: int, size: int) -> bytes:
        """Return a piece of a file."""
        return read_piece(Folder(path), name, offset, size)


def cluster_name() -> str:
    """Return a name no other cluster has."""
    return str(ray.get_runtime_context().get_session_name())


def _controller(job: str) -> Job | None:
    try:
        return find(job)
    except ValueError:
        return None


def _job(job: str) -> Job:
    found = _controller(job)
    if found is None:
        raise NotRunning(job, "not running", "it has no controller on this cluster")
    return found


def _checkpoint(path: str) -> str:
    """Return a checkpoint: the one at `path`, or the last one of the job at `path`."""
    names = completed(Folder(path))
    return f"{path}/{names[-1]}" if names else path


def _seen(folder: Folder, name: str) -> CheckpointSeen:
    manifest = read_manifest(folder)
    return CheckpointSeen(
        name=name,
        path=folder.uri,
        step=manifest["step"],
        round=manifest["round"],
        workers=len(manifest["workers"]),
        elapsed_s=manifest["elapsed_s"],
        size_bytes=sum(manifest["files"].values()),
    )


async def serve(endpoint: str, parent: int, gateway: Runtime | None = None) -> None:
    """Answer until the control plane, the process of this number, is gone."""
    gateway = gateway or Gateway()
    socket = zmq.asyncio.Context.instance().socket(zmq.PAIR)
    socket.linger = 1000
    socket.connect(endpoint)
    await socket.send(msgspec.msgpack.encode(Greeting(gateway.ping())))
    loop, others = asyncio.get_running_loop(), ThreadPoolExecutor(_THREADS)
    lanes = {method: ThreadPoolExecutor(count) for method, count in _LANES.items()}
    pending: set[asyncio.Task[None]] = set()

    async def reply(ask: Ask) -> None:
        answer = await loop.run_in_executor(lanes.get(ask.method, others), answered, gateway, ask)
        await socket.send(answer)

    try:
        while os.getppid() == parent:
            if not await socket.poll(int(1000 * _ORPHANED_S)):
                continue
            task = asyncio.create_task(reply(msgspec.msgpack.decode(await socket.recv(), type=Ask)))
            pending.add(task)
            task.add_done_callback(pending.discard)
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        socket.close(linger=0)
    # The control plane that made it is gone.
    shutil.rmtree(Path(endpoint.removeprefix("ipc://")).parent, ignore_errors=True)


def answered(gateway: Runtime, ask: Ask) -> bytes:
    """Return the answer to a question, packed; whatever goes wrong is an answer too."""
    try:
        if ask.method not in QUESTIONS:
            raise LookupError(f"there is no method {ask.method!r}")
        arguments = QUESTIONS[ask.method].arguments(ask)
        return msgspec.msgpack.encode(Answer(ask.number, getattr(gateway, ask.method)(**arguments)), enc_hook=str)
    except Exception as error:
        if not isinstance(error, RaysyncError | RayError):
            logger.exception("%s failed", ask.method)
        return msgspec.msgpack.encode(failed(ask.number, error), enc_hook=str)


def main(address: str, endpoint: str, parent: int, warm: int = 0) -> int:
    """Join the cluster and serve; if it cannot be joined, say so and end."""
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.WARNING)
    try:
        join(address)
    except Exception as error:
        socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PAIR)
        socket.linger = 1000
        socket.connect(endpoint)
        socket.send(msgspec.msgpack.encode(Greeting(None, str(error))))
        socket.close()
        zmq.Context.instance().term()
        return 1
    asyncio.run(serve(endpoint, parent, Gateway(warm)))
    return 0


if __name__ == "__main__":
    # os._exit: threads that wait for Ray must not hold up the end.
    code = main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:5]))
    sys.stderr.flush()
    os._exit(code)

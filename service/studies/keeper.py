"""Keeps a process for every study of this service, answers what it asks, and writes down what it tells.

A study belongs to the service in whose folder it is: Optuna's books and the trials are in a database there. A service
that is started again starts the processes of its studies again, and they go on from there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

import msgspec
import zmq
import zmq.asyncio

from raysync.control.adopt import NO_CLUSTER
from raysync.errors import RaysyncError, SpecError
from raysync.reason import shortened
from raysync.study import State
from raysync.study.study_spec import StudySpec
from raysync.study.wire import (
    Answered,
    EndStudy,
    FromStudy,
    LookAtJob,
    StartJob,
    StopJob,
    StudyEnded,
    ToStudy,
    TrialTold,
)
from service.errors import DatabaseUnavailable, NotFound
from service.jobs.manager import Manager
from service.jobs.workers import Workers
from service.runtime.port import AsyncRuntime
from service.security.redaction import redacted
from service.store import JobRow, Store
from service.store.reading import Pools
from service.store.studies import StudyRow, TrialRow

P = ParamSpec("P")
T = TypeVar("T")

Enter = Callable[[StudyRow, str, str], JobRow]
"""Makes the row of a trial's job, of its study, its id and its specification; raises for what may not run."""

_AGAIN_S = 2.0
_LOOK_S = 1.0
_HEARTBEAT_S = 10.0
_STOP_S = 30.0
_MAX_RESTARTS = 5
_LONG_S = 300.0
"""A process that ran so long had begun well: its end is the first of a row, if it is of one."""
_MAX_PROCESSES = 4
"""Studies at once; each is a process with Ray, Tune and Optuna in it."""

logger = logging.getLogger(__name__)


class Start(NamedTuple):
    """How to start a study's process."""

    address: Callable[[], str]
    """Returns the cluster's address; called in a thread."""
    command: Callable[[str, str, str], Sequence[str]]
    """Returns the command for a folder, an address and a socket."""
    env: Mapping[str, str]


class Keeper:
    """Looks after the studies of one service."""

    def __init__(
        self,
        store: Store,
        runtime: AsyncRuntime,
        manager: Manager,
        pools: Pools,
        folder: Path,
        how: Start,
        enter: Enter,
    ) -> None:
        self._store, self._runtime, self._manager, self._pools = store, runtime, manager, pools
        self._folder, self._how, self._enter = folder, how, enter
        self._workers = Workers("studies", 4)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._sockets: dict[str, zmq.asyncio.Socket] = {}
        self._changed: dict[str, asyncio.Event] = {}
        self._room = asyncio.Semaphore(_MAX_PROCESSES)

    async def start(self) -> None:
        """Go on with the studies that were under way."""
        for row in await self._workers.run(self._store.studies.unfinished):
            if (self._folder / row.id).is_dir():
                self._keep(row.id)

    async def close(self) -> None:
        """End the processes; their studies go on when the service is back."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._workers.close()

    async def submit(self, row: StudyRow, spec: StudySpec) -> StudyRow:
        """Enter a study and start it."""
        await self._workers.run(prepare, self._folder / row.id, spec)
        await self._workers.run(self._store.studies.add, row)
        self._keep(row.id)
        return row

    async def stop(self, id: str, reason: str) -> StudyRow:
        """Ask a study to end; what it has found so far is its answer."""
        row = await self._workers.run(self._store.studies.get, id)
        if row.is_over:
            return row
        row = await self._workers.run(self._store.studies.change, id, {"stop": row.stop or reason})
        self._say(id, EndStudy())  # at once if its process listens; else it is told within a few seconds
        return row

    async def follow(self, id: str, after: int, show: Callable[[TrialRow], str]) -> AsyncGenerator[bytes, None]:
        """Yield every change of a trial, as `show` has it, as a server-sent event, from a number on, to the end of the
        study.
        """
        yield b"retry: 1000\n\n"
        silent_s = 0.0
        while True:
            changed = self._changed.setdefault(id, asyncio.Event())
            changed.clear()
            try:
                row = await self._pools.page(partial(self._store.studies.get, id))
                fresh = list[TrialRow]()
                if row.sequence > after:
                    fresh = await self._pools.page(partial(self._store.studies.trials, id, after))
            except DatabaseUnavailable:
                await asyncio.sleep(_LOOK_S)
                continue
            for found in fresh:
                after, silent_s = found.sequence, 0.0
                yield f"id: {found.sequence}\nevent: trial\ndata: {show(found)}\n\n".encode()
            if row.is_over:
                end = msgspec.json.encode({"state": row.state, "reason": redacted(row.reason)}).decode()
                yield f"id: {max(after, row.sequence)}\nevent: end\ndata: {end}\n\n".encode()
                self._changed.pop(id, None)
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), _LOOK_S)
            silent_s += _LOOK_S
            if silent_s >= _HEARTBEAT_S:
                silent_s = 0.0
                yield b": still here\n\n"

    # One task per study

    def _keep(self, id: str) -> None:
        self._tasks[id] = asyncio.create_task(self._look_after(id), name=f"study {id}")
        self._tasks[id].add_done_callback(lambda task: self._tasks.pop(id, None))

    async def _look_after(self, id: str) -> None:
        """Have a process for the study until it has ended; one that dies is started again, a few times."""
        failures = 0
        while not (row := await self._patiently(self._store.studies.get, id)).is_over:
            if row.stop is not None and row.state == "PENDING":
                await self._give_up(id, "STOPPED", row.stop)
                return
            if self._runtime.cluster is None:
                await self._note(id, "PENDING", NO_CLUSTER)
                await asyncio.sleep(_AGAIN_S)
                continue
            if self._room.locked():
                await self._note(id, "PENDING", "waits for another study to end")
            async with self._room:
                started_s = time.monotonic()
                try:
                    problem = await self._run(id)
                except Exception as error:
                    logger.exception("study %s", id)
                    problem = f"{type(error).__name__}: {error}"
            if problem is None:
                return
            failures = failures + 1 if time.monotonic() - started_s < _LONG_S else 1
            if failures >= _MAX_RESTARTS:
                reason = f"its process ended {failures} times soon after its start; the service's log says why"
                await self._give_up(id, "FAILED", reason)
                return
            logger.warning("the process of study %s ended: %s", id, problem)
            await asyncio.sleep(_AGAIN_S)

    async def _give_up(self, id: str, state: str, reason: str) -> None:
        """End a study without its process: its trials' jobs, and what is known of them, too."""
        for found in await self._patiently(self._store.studies.trials, id):
            if not found.trial.state.is_over:
                for job in found.trial.jobs:
                    try:
                        await self._manager.steering.stop(job, reason, _STOP_S)
                    except RaysyncError as error:
                        logger.warning("job %s of study %s was not told to stop: %s", job, id, error)
                trial = msgspec.structs.replace(found.trial, state=State.STOPPED, reason=reason)
                await self._patiently(self._store.studies.put_trial, id, trial)
        await self._end(id, state, reason)

    async def _run(self, id: str) -> str | None:
        """Run the study's process to its end; return why it ended before the study did, None if it did not."""
        place = tempfile.mkdtemp(prefix="raysync-st-")
        endpoint = f"ipc://{place}/study"
        socket = zmq.asyncio.Context.instance().socket(zmq.PAIR)
        socket.linger = 0
        socket.bind(endpoint)
        log = self._folder / id / "process.log"
        try:
            address = await asyncio.to_thread(self._how.address)
            with log.open("ab") as file:
                process = await asyncio.create_subprocess_exec(
                    *self._how.command(str(self._folder / id), address, endpoint),
                    env=dict(self._how.env),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                )
        except (RaysyncError, OSError) as error:
            socket.close()
            shutil.rmtree(place, ignore_errors=True)
            return str(error)
        self._sockets[id] = socket
        reading: asyncio.Future[None] | None = None
        answering: set[asyncio.Task[None]] = set()
        try:
            await self._note(id, "RUNNING", "")
            reading = asyncio.ensure_future(self._read(id, socket, answering))
            ending = asyncio.ensure_future(process.wait())
            done: set[asyncio.Future[Any]] = set()
            while not done:
                done, _ = await asyncio.wait((reading, ending), timeout=_AGAIN_S, return_when=asyncio.FIRST_COMPLETED)
                row = await self._patiently(self._store.studies.get, id)
                if row.stop is not None and not done:  # by whichever service it was asked
                    self._say(id, EndStudy())
            if reading not in done:
                with contextlib.suppress(TimeoutError):  # what it said last may still be on its way
                    await asyncio.wait_for(reading, _AGAIN_S)
            reading.cancel()
            if reading.done() and not reading.cancelled() and reading.exception() is None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(ending, _STOP_S)
                return None
            return f"it exited with {process.returncode}; see {log}"
        finally:
            del self._sockets[id]
            for task in (reading, *answering):
                if task is not None and not task.done():
                    task.cancel()
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            socket.close()
            shutil.rmtree(place, ignore_errors=True)

    async def _read(self, id: str, socket: zmq.asyncio.Socket, answering: set[asyncio.Task[None]]) -> None:
        """Take in what the process says until it says how the study ended."""
        while True:
            message: FromStudy = msgspec.msgpack.decode(await socket.recv(), type=FromStudy)
            match message:
                case TrialTold():
                    await self._patiently(self._store.studies.put_trial, id, message.trial)
                    self._hint(id)
                case StudyEnded():
                    await self._end(id, message.state, message.reason)
                    return
                case StartJob() | StopJob() | LookAtJob():
                    task = asyncio.create_task(self._reply(id, message))
                    answering.add(task)
                    task.add_done_callback(answering.discard)

    async def _reply(self, id: str, asked: StartJob | StopJob | LookAtJob) -> None:
        """Answer a question; what is slow holds up no other."""
        self._say(id, Answered(asked.number, await self._answer(id, asked)))

    async def _answer(self, id: str, asked: StartJob | StopJob | LookAtJob) -> str | None:
        try:
            match asked:
                case StartJob():
                    await self._start_job(id, asked)
                case StopJob():
                    await self._manager.steering.stop(asked.id, asked.reason, _STOP_S)
                case LookAtJob():
                    job = await self._patiently(self._store.jobs.get, asked.id)
                    return f"the job is {job.state}: {job.reason}" if job.is_terminal else None
        except NotFound as error:
            return None if isinstance(asked, StopJob) else str(error)
        except SpecError as error:
            return str(error.problems[0])
        except RaysyncError as error:
            return shortened(str(error))
        except Exception as error:  # the trial fails with it, and the study goes on
            logger.exception("study %s asked for what could not be done", id)
            return shortened(f"{type(error).__name__}: {error}")
        return None

    async def _start_job(self, id: str, asked: StartJob) -> None:
        study = await self._patiently(self._store.studies.get, id)
        row = await self._patiently(self._enter, study, asked.id, asked.spec)
        await self._patiently(self._store.jobs.add, row)
        self._manager.wake()

    def _say(self, id: str, message: ToStudy) -> None:
        """Say something to a study's process, if it listens: to one that does not a socket would wait for ever."""
        socket = self._sockets.get(id)
        if socket is not None:
            with contextlib.suppress(zmq.ZMQError):
                zmq.Socket.shadow(socket.underlying).send(msgspec.msgpack.encode(message), zmq.NOBLOCK)

    async def _note(self, id: str, state: str, reason: str) -> None:
        await self._patiently(self._store.studies.change, id, {"state": state, "reason": reason})
        self._hint(id)

    async def _end(self, id: str, state: str, reason: str) -> None:
        changes = {"state": state, "reason": reason, "ended_s": time.time()}
        await self._patiently(self._store.studies.change, id, changes)
        self._hint(id)

    def _hint(self, id: str) -> None:
        if id in self._changed:
            self._changed[id].set()

    async def _patiently(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do something with the books, again and again while the database does not answer."""
        while True:
            try:
                return await self._workers.run(work, *args, **kwargs)
            except DatabaseUnavailable as error:
                logger.warning("%s", error)
                await asyncio.sleep(_AGAIN_S)


def prepare(folder: Path, spec: StudySpec) -> None:
    """Make the folder a study's process begins with."""
    folder.mkdir(parents=True, mode=0o700)
    (folder / "study.json").write_text(spec.model_dump_json(indent=1))

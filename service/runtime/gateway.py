"""The runtime behind a gateway process: started here, asked over a socket, started again when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from raysync.errors import RuntimeLost
from raysync.questions import QUESTIONS, Answer, Greeting, Question
from service.runtime.port import AsyncRuntime

_GREETING_S = 90.0
_PING_EVERY_S = 2.0
_PING_S = 15.0
_ASK_S = 60.0
_AGAIN_S = 1.0
_AGAIN_MAX_S = 10.0

logger = logging.getLogger(__name__)


class GatewayRuntime(AsyncRuntime):
    """The runtime on a Ray cluster.

    Args:
        name: What the address is known by in the books: the same after a restart.
        address: Returns the cluster's address, starting one if that is its way; called in a thread, before each try.
        give_up: Lets `address` return or raise at once, if it still waits.
        command: Returns the command of a gateway for an address and a socket.
        env: The gateway's environment.
        log: Where the gateway's own lines go.

    """

    def __init__(
        self,
        name: str,
        address: Callable[[], str],
        command: Callable[[str, str], Sequence[str]],
        env: Mapping[str, str],
        log: Path,
        give_up: Callable[[], None] = lambda: None,
    ) -> None:
        self._address, self._command, self._env, self._log = address, command, dict(env), log
        self._name, self._give_up = name, give_up
        self._cluster: str | None = None
        self._problem = "it has not been looked for yet"
        self._lost_s = time.monotonic()
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._socket: zmq.asyncio.Socket | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def cluster(self) -> str | None:
        """The cluster that answers now."""
        return self._cluster

    @property
    def address(self) -> str:
        """Where a cluster is looked for."""
        return self._name

    @property
    def problem(self) -> str:
        """Why none does."""
        return self._problem

    @property
    def unreachable_s(self) -> float:
        """For how long none has."""
        return 0.0 if self._cluster is not None else time.monotonic() - self._lost_s

    async def start(self) -> None:
        """Begin to look for a cluster."""
        self._tasks = [asyncio.create_task(self._supervise(), name="gateway")]

    async def close(self) -> None:
        """End the gateway; jobs run on."""
        self._give_up()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _ask(self, question: Question, *args: Any, **kwargs: Any) -> Any:
        return await self._asked(_ASK_S, question, *args, **kwargs)

    async def _asked(self, timeout_s: float, question: Question, *args: Any, **kwargs: Any) -> Any:
        if self._socket is None or self._cluster is None:
            raise RuntimeLost(self._problem)
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            await self._socket.send(msgspec.msgpack.encode(question.ask(number, *args, **kwargs)))
            answer: Answer = await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            raise RuntimeLost(f"no answer to {question.method} within {timeout_s:.0f} s") from None
        finally:
            del self._waiting[number]
        return question.answer(answer)

    # The process

    async def _supervise(self) -> None:
        """Keep a gateway on a cluster for as long as the service lives."""
        again_s = _AGAIN_S
        while True:
            try:
                address = await asyncio.to_thread(self._address)
                await self._run(address)
                again_s = _AGAIN_S
            except asyncio.CancelledError:
                raise
            except Exception as error:
                self._problem = str(error)
                logger.warning("no Ray cluster: %s", error)
            await asyncio.sleep(again_s)
            again_s = min(_AGAIN_MAX_S, 2 * again_s)

    async def _run(self, address: str) -> None:
        """Run one gateway until it dies or its cluster stops answering."""
        folder = tempfile.mkdtemp(prefix="raysync-gw-")
        endpoint = f"ipc://{folder}/gateway"
        socket = zmq.asyncio.Context.instance().socket(zmq.PAIR)
        socket.linger = 0
        socket.bind(endpoint)
        self._log.touch(mode=0o600)
        with self._log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *self._command(address, endpoint),
                env=self._env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            await self._greet(socket, process)
            self._socket = socket
            logger.info("joined the Ray cluster at %s", address, extra={"cluster": self._cluster})
            why = await self._first_to_end(self._read(socket), self._ping(), process.wait())
            self._problem = f"the gateway to {address} ended ({why})"
            logger.warning("%s", self._problem)
        finally:
            self._lose()
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            socket.close()
            shutil.rmtree(folder, ignore_errors=True)

    async def _greet(self, socket: zmq.asyncio.Socket, process: asyncio.subprocess.Process) -> None:
        waits_s, step_s = _GREETING_S, 0.5
        while not await socket.poll(int(1000 * step_s)):
            waits_s -= step_s
            if process.returncode is not None or waits_s <= 0:
                raise RuntimeLost(f"the gateway said nothing; see {self._log}")
        greeting = msgspec.msgpack.decode(await socket.recv(), type=Greeting)
        if greeting.cluster is None:
            raise RuntimeLost(greeting.problem or "no reason given")
        self._cluster = greeting.cluster

    async def _read(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            answer = msgspec.msgpack.decode(await socket.recv(), type=Answer)
            future = self._waiting.get(answer.number)
            if future is not None and not future.done():
                future.set_result(answer)

    async def _ping(self) -> None:
        while True:
            await self._asked(_PING_S, QUESTIONS["ping"])
            await asyncio.sleep(_PING_EVERY_S)

    async def _first_to_end(self, *coroutines: Any) -> str:
        """Wait until one of these ends; return how."""
        tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            ended = done.pop()
            return str(ended.exception() or f"it exited with {ended.result()}")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _lose(self) -> None:
        if self._cluster is not None:
            self._lost_s = time.monotonic()
        self._cluster = self._socket = None
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(RuntimeLost(self._problem))

"""The Python client for asyncio."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from typing import Any, Self, TypeVar

import httpx2 as httpx

from raysync.spec import JobSpec
from service import calls
from service.calls import ApiError, Call
from service.catalogue import Catalogue
from service.reach import (
    STREAM_TIMEOUT,
    TIMEOUT,
    TRANSIENT,
    TRIES,
    Retry,
    Stream,
    event_of,
    find_service,
    request_of,
    verification,
)
from service.schemas import CheckpointPublic, EventPage, EventPublic, JobPage, JobPublic, KnobsPublic, PackagePublic

T = TypeVar("T")


class AsyncClient:
    """The methods of `service.client.Client`, to be awaited."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        verify: bool | str = True,
        tries: int = TRIES,
        **options: Any,
    ) -> None:
        self.place, self.tries = find_service(url, token), tries
        headers = {"Authorization": f"Bearer {self.place.token}"} if self.place.token else {}
        self._http = httpx.AsyncClient(
            base_url=self.place.url, headers=headers, timeout=TIMEOUT, verify=verification(verify), **options
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of connections."""
        await self._http.aclose()

    async def submit(self, spec: JobSpec | dict[str, Any], *, key: str | None = None, **options: Any) -> JobPublic:
        """Submit a job; `options` are `package`, `pip`, `resume_from`, `on_cluster_loss`."""
        return await self._send(calls.submit(spec, key or secrets.token_hex(16), **options))

    async def jobs(self, state: str | None = None, limit: int = 50, cursor: str | None = None) -> JobPage:
        """List jobs, newest first."""
        return await self._send(calls.jobs(state, limit, cursor))

    async def job(self, id: str) -> JobPublic:
        """Look at a job."""
        return await self._send(calls.job(id))

    async def remove(self, id: str) -> None:
        """Remove a finished job from the books."""
        await self._send(calls.remove(id))

    async def stop(self, id: str, reason: str = "somebody stopped it", force_after_s: float = 60.0) -> JobPublic:
        """End a job in good order, by force after the bound."""
        return await self._send(calls.stop(id, reason, force_after_s))

    async def pause(self, id: str) -> JobPublic:
        """Hold a job at its next decision."""
        return await self._send(calls.pause(id))

    async def resume(self, id: str) -> JobPublic:
        """Let a paused job go on."""
        return await self._send(calls.resume(id))

    async def scale(self, id: str, count: int) -> JobPublic:
        """Ask for another number of workers."""
        return await self._send(calls.scale(id, count))

    async def knobs(self, id: str) -> KnobsPublic:
        """Look at a job's knobs."""
        return await self._send(calls.knobs(id))

    async def turn(
        self, id: str, *, expected_version: int | None = None, dry_run: bool = False, **values: Any
    ) -> KnobsPublic:
        """Turn knobs; all workers have them from the next decision on."""
        return await self._send(calls.turn(id, values, expected_version, dry_run))

    async def metrics(self, id: str, after: int = -1, limit: int = 500, points: int | None = None) -> EventPage:
        """Return a page of metrics, or about `points` of them spread over the whole job."""
        return await self._send(calls.metrics(id, after, limit, points))

    async def events(self, id: str, after: int = -1, limit: int = 500, kind: str | None = None) -> EventPage:
        """Return a page of events."""
        return await self._send(calls.events(id, after, limit, kind))

    async def log(self, id: str, tail: int = 1000, actor: str | None = None) -> str:
        """Return the last log lines."""
        return await self._send(calls.log(id, tail, actor))

    async def checkpoints(self, id: str) -> list[CheckpointPublic]:
        """List a job's checkpoints."""
        return await self._send(calls.checkpoints(id))

    async def take_checkpoint(self, id: str) -> JobPublic:
        """Take a checkpoint at the next quiet moment."""
        return await self._send(calls.take_checkpoint(id))

    async def upload(self, content: bytes) -> PackagePublic:
        """Send user code, a zip file."""
        return await self._send(calls.upload(content))

    async def components(self) -> Catalogue:
        """Return what jobs may be made of."""
        return await self._send(calls.components())

    async def follow(self, id: str, after: int = -1, *, metrics_only: bool = False) -> AsyncIterator[EventPublic]:
        """Yield a job's events from number `after + 1` to its end, each once, whatever happens to the connection."""
        stream = Stream(calls.stream_path(id, "metrics" if metrics_only else "events"), after)
        async for kind, data in self._events(stream):
            event = event_of(kind, data)
            if event is None:
                return
            yield event

    async def follow_log(self, id: str, actor: str | None = None) -> AsyncIterator[str]:
        """Yield log lines as they come, to the job's end."""
        async for kind, data in self._events(Stream(calls.log_stream_path(id, actor), None)):
            if kind == "end":
                return
            for line in data:
                yield json.loads(line)

    async def wait(self, id: str, timeout_s: float | None = None) -> JobPublic:
        """Wait for a job's end; raise `TimeoutError` if it does not come."""
        async with asyncio.timeout(timeout_s):
            while not (job := await self.job(id)).is_terminal:
                await asyncio.sleep(0.5)
        return job

    async def _send(self, call: Call[T]) -> T:
        retry = Retry(call, self.tries)
        while True:
            try:
                response = await self._http.request(**request_of(call))
            except httpx.TransportError as error:
                await asyncio.sleep(retry.after_failure(error, self.place.url))
                continue
            wait_s = retry.after_answer(response)
            if wait_s is None:
                return retry.read(response)
            await asyncio.sleep(wait_s)

    async def _events(self, stream: Stream) -> AsyncIterator[tuple[str, list[str]]]:
        while True:
            try:
                async with self._http.stream(
                    "GET", stream.path, headers=stream.headers, timeout=STREAM_TIMEOUT
                ) as response:
                    if response.status_code in TRANSIENT:
                        raise httpx.RemoteProtocolError(f"answered {response.status_code}")
                    if response.status_code >= 400:
                        raise ApiError.of(response.status_code, await response.aread())
                    async for line in response.aiter_lines():
                        stream.heard()
                        event = stream.reader.feed(line)
                        if event is not None:
                            yield event
                problem: Exception = ConnectionError("the stream ended before the job")
            except httpx.TransportError as error:
                problem = error
            await asyncio.sleep(stream.broke_off(problem, self.place.url))

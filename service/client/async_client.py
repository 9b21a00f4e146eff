"""The Python client for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any, BinaryIO, Self, TypeVar

import httpx2 as httpx

from service.client.call import ApiError, Call
from service.client.finding import found_id, is_prefix, is_whole, range_of
from service.client.method import AsyncSender
from service.client.requests import Requests, artifact_path
from service.client.retry import FIRST_WAIT_S, TRANSIENT, TRIES, Away, Retry, Unreachable
from service.client.stream import STREAM_TIMEOUT, Stream
from service.client.transport import find_service, request_of, transport_options
from service.http.schemas import JobPublic

T = TypeVar("T")

_LOOK_S = 0.5
"""How often a job is looked at whose end is waited for."""


class AsyncClient(Requests, AsyncSender):
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
        self._http = httpx.AsyncClient(**{**transport_options(self.place, verify), **options})

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of connections."""
        await self._http.aclose()

    async def wait(self, id: str, timeout_s: float | None = None) -> JobPublic:
        """Wait for a job's end; raise `TimeoutError` if it does not come."""
        async with asyncio.timeout(timeout_s):
            while not (job := await self.job(id)).is_terminal:
                await asyncio.sleep(_LOOK_S)
        return job

    async def find(self, text: str) -> str:
        """Return the id of the job a text means: an id, what an id begins with, or what its random end begins with."""
        if is_whole(text):
            return text
        page = await self.jobs(prefix=text, limit=20) if is_prefix(text) else None
        return found_id(text, [job.id for job in page.items] if page is not None else [])

    async def download(self, id: str, path: str, file: BinaryIO) -> int:
        """Write an artifact of a job to a file that is open for writing; return its size.

        If the connection breaks off, it goes on where it did.
        """
        done, left = 0, self.tries
        while True:
            try:
                async with self._http.stream(
                    "GET", artifact_path(id, path), headers=range_of(done), timeout=STREAM_TIMEOUT
                ) as response:
                    if response.status_code >= 400:
                        raise ApiError.of(response.status_code, await response.aread())
                    async for chunk in response.aiter_raw():
                        done += file.write(chunk)
                        left = self.tries
                return done
            except httpx.TransportError as error:
                left -= 1
                if left <= 0:
                    raise Unreachable(self.place.url, str(error) or type(error).__name__) from error
                await asyncio.sleep(FIRST_WAIT_S)

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

    async def _read(self, stream: Stream[T]) -> AsyncIterator[T]:
        while True:
            try:
                async with self._http.stream(
                    "GET", stream.path, headers=stream.headers, timeout=STREAM_TIMEOUT
                ) as response:
                    if response.status_code in TRANSIENT:
                        raise Away(f"answered {response.status_code}")
                    if response.status_code == HTTPStatus.NO_CONTENT:
                        return  # it had ended, and all of it was read
                    if response.status_code >= 400:
                        raise ApiError.of(response.status_code, await response.aread())
                    async for line in response.aiter_lines():
                        for item in stream.feed(line):
                            yield item
                        if stream.has_ended:
                            return
                problem: Exception = ConnectionError("the stream ended before the job")
            except httpx.TransportError as error:
                problem = error
            await asyncio.sleep(stream.broke_off(problem, self.place.url))

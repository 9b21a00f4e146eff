"""The blocking client.

    from service.client import Client

    with Client() as raysync:                       # finds the service this machine runs, or RAYSYNC_URL and _TOKEN
        job = raysync.submit(read_spec("job.yaml"))
        raysync.turn(job.id, delta=0.5)
        for event in raysync.follow(job.id):
            print(event.kind, event.step, event.data)

What does no harm when repeated is repeated until the service answers or the retries are spent; streams go on where
they broke off. Its methods are declared in `service.client.requests`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, BinaryIO, Self, TypeVar

import httpx2 as httpx

from service.client.call import ApiError, Call
from service.client.finding import found_id, is_prefix, is_whole, range_of
from service.client.method import Sender
from service.client.requests import Requests, artifact_path
from service.client.retry import FIRST_WAIT_S, TRANSIENT, TRIES, Away, Retry, Unreachable
from service.client.stream import STREAM_TIMEOUT, Stream
from service.client.transport import find_service, request_of, transport_options
from service.http.schemas import JobPublic

T = TypeVar("T")

_LOOK_S = 0.5
"""How often a job is looked at whose end is waited for."""


class Client(Requests, Sender):
    """A blocking client; every method raises `ApiError` if the service refuses, `Unreachable` if none answers."""

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
        self._http = httpx.Client(**{**transport_options(self.place, verify), **options})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of connections."""
        self._http.close()

    def wait(self, id: str, timeout_s: float | None = None) -> JobPublic:
        """Wait for a job's end; raise `TimeoutError` if it does not come."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not (job := self.job(id)).is_terminal:
            if deadline_s is not None and time.monotonic() > deadline_s:
                raise TimeoutError(f"job {id} is still {job.state.value} after {timeout_s} s")
            time.sleep(_LOOK_S)
        return job

    def find(self, text: str) -> str:
        """Return the id of the job a text means: an id, what an id begins with, or what its random end begins with."""
        if is_whole(text):
            return text
        return found_id(text, [job.id for job in self.jobs(prefix=text, limit=20).items] if is_prefix(text) else [])

    def download(self, id: str, path: str, file: BinaryIO) -> int:
        """Write an artifact of a job to a file that is open for writing; return its size.

        If the connection breaks off, it goes on where it did.
        """
        done, left = 0, self.tries
        while True:
            try:
                headers = range_of(done)
                with self._http.stream(
                    "GET", artifact_path(id, path), headers=headers, timeout=STREAM_TIMEOUT
                ) as response:
                    if response.status_code >= 400:
                        raise ApiError.of(response.status_code, response.read())
                    for chunk in response.iter_raw():
                        done += file.write(chunk)
                        left = self.tries
                return done
            except httpx.TransportError as error:
                left -= 1
                if left <= 0:
                    raise Unreachable(self.place.url, str(error) or type(error).__name__) from error
                time.sleep(FIRST_WAIT_S)

    def _send(self, call: Call[T]) -> T:
        retry = Retry(call, self.tries)
        while True:
            try:
                response = self._http.request(**request_of(call))
            except httpx.TransportError as error:
                time.sleep(retry.after_failure(error, self.place.url))
                continue
            wait_s = retry.after_answer(response)
            if wait_s is None:
                return retry.read(response)
            time.sleep(wait_s)

    def _read(self, stream: Stream[T]) -> Iterator[T]:
        while True:
            try:
                with self._http.stream("GET", stream.path, headers=stream.headers, timeout=STREAM_TIMEOUT) as response:
                    if response.status_code in TRANSIENT:
                        raise Away(f"answered {response.status_code}")
                    if response.status_code == HTTPStatus.NO_CONTENT:
                        return  # it had ended, and all of it was read
                    if response.status_code >= 400:
                        raise ApiError.of(response.status_code, response.read())
                    for line in response.iter_lines():
                        yield from stream.feed(line)
                        if stream.has_ended:
                            return
                problem: Exception = ConnectionError("the stream ended before the job")
            except httpx.TransportError as error:
                problem = error
            time.sleep(stream.broke_off(problem, self.place.url))

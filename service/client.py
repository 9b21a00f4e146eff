"""Python clients of the service, blocking and asynchronous, with the same methods.

    from service.client import Client

    with Client() as raysync:                       # finds the service this machine runs, or RAYSYNC_URL and _TOKEN
        job = raysync.submit(read_spec("job.yaml"))
        raysync.turn(job.id, delta=0.5)
        for event in raysync.follow(job.id):
            print(event.kind, event.step, event.data)

What does no harm when repeated is repeated until the service answers or the retries are spent; streams go on where
they broke off.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from typing import Any, Self, TypeVar

import httpx2 as httpx

from raysync.spec import JobSpec
from service import calls
from service.async_client import AsyncClient
from service.calls import ApiError, Call
from service.catalogue import Catalogue
from service.reach import (
    STREAM_TIMEOUT,
    TIMEOUT,
    TRANSIENT,
    TRIES,
    Retry,
    Stream,
    Unreachable,
    event_of,
    find_service,
    request_of,
    verification,
)
from service.schemas import CheckpointPublic, EventPage, EventPublic, JobPage, JobPublic, KnobsPublic, PackagePublic

T = TypeVar("T")


__all__ = ["ApiError", "AsyncClient", "Client", "Unreachable"]


class Client:
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
        headers = {"Authorization": f"Bearer {self.place.token}"} if self.place.token else {}
        self._http = httpx.Client(
            base_url=self.place.url, headers=headers, timeout=TIMEOUT, verify=verification(verify), **options
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of connections."""
        self._http.close()

    def submit(self, spec: JobSpec | dict[str, Any], *, key: str | None = None, **options: Any) -> JobPublic:
        """Submit a job; `options` are `package`, `pip`, `resume_from`, `on_cluster_loss`."""
        return self._send(calls.submit(spec, key or secrets.token_hex(16), **options))

    def jobs(self, state: str | None = None, limit: int = 50, cursor: str | None = None) -> JobPage:
        """List jobs, newest first."""
        return self._send(calls.jobs(state, limit, cursor))

    def job(self, id: str) -> JobPublic:
        """Look at a job."""
        return self._send(calls.job(id))

    def remove(self, id: str) -> None:
        """Remove a finished job from the books."""
        self._send(calls.remove(id))

    def stop(self, id: str, reason: str = "somebody stopped it", force_after_s: float = 60.0) -> JobPublic:
        """End a job in good order, by force after the bound."""
        return self._send(calls.stop(id, reason, force_after_s))

    def pause(self, id: str) -> JobPublic:
        """Hold a job at its next decision."""
        return self._send(calls.pause(id))

    def resume(self, id: str) -> JobPublic:
        """Let a paused job go on."""
        return self._send(calls.resume(id))

    def scale(self, id: str, count: int) -> JobPublic:
        """Ask for another number of workers."""
        return self._send(calls.scale(id, count))

    def knobs(self, id: str) -> KnobsPublic:
        """Look at a job's knobs."""
        return self._send(calls.knobs(id))

    def turn(
        self, id: str, *, expected_version: int | None = None, dry_run: bool = False, **values: Any
    ) -> KnobsPublic:
        """Turn knobs; all workers have them from the next decision on."""
        return self._send(calls.turn(id, values, expected_version, dry_run))

    def metrics(self, id: str, after: int = -1, limit: int = 500, points: int | None = None) -> EventPage:
        """Return a page of metrics, or about `points` of them spread over the whole job."""
        return self._send(calls.metrics(id, after, limit, points))

    def events(self, id: str, after: int = -1, limit: int = 500, kind: str | None = None) -> EventPage:
        """Return a page of events."""
        return self._send(calls.events(id, after, limit, kind))

    def log(self, id: str, tail: int = 1000, actor: str | None = None) -> str:
        """Return the last log lines."""
        return self._send(calls.log(id, tail, actor))

    def checkpoints(self, id: str) -> list[CheckpointPublic]:
        """List a job's checkpoints."""
        return self._send(calls.checkpoints(id))

    def take_checkpoint(self, id: str) -> JobPublic:
        """Take a checkpoint at the next quiet moment."""
        return self._send(calls.take_checkpoint(id))

    def upload(self, content: bytes) -> PackagePublic:
        """Send user code, a zip file."""
        return self._send(calls.upload(content))

    def components(self) -> Catalogue:
        """Return what jobs may be made of."""
        return self._send(calls.components())

    def follow(self, id: str, after: int = -1, *, metrics_only: bool = False) -> Iterator[EventPublic]:
        """Yield a job's events from number `after + 1` to its end, each once, whatever happens to the connection."""
        stream = Stream(calls.stream_path(id, "metrics" if metrics_only else "events"), after)
        for kind, data in self._events(stream):
            event = event_of(kind, data)
            if event is None:
                return
            yield event

    def follow_log(self, id: str, actor: str | None = None) -> Iterator[str]:
        """Yield log lines as they come, to the job's end."""
        for kind, data in self._events(Stream(calls.log_stream_path(id, actor), None)):
            if kind == "end":
                return
            yield from (json.loads(line) for line in data)

    def wait(self, id: str, timeout_s: float | None = None) -> JobPublic:
        """Wait for a job's end; raise `TimeoutError` if it does not come."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not (job := self.job(id)).is_terminal:
            if deadline_s is not None and time.monotonic() > deadline_s:
                raise TimeoutError(f"job {id} is still {job.state.value} after {timeout_s} s")
            time.sleep(0.5)
        return job

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

    def _events(self, stream: Stream) -> Iterator[tuple[str, list[str]]]:
        while True:
            try:
                with self._http.stream("GET", stream.path, headers=stream.headers, timeout=STREAM_TIMEOUT) as response:
                    if response.status_code in TRANSIENT:
                        raise httpx.RemoteProtocolError(f"answered {response.status_code}")
                    if response.status_code >= 400:
                        raise ApiError.of(response.status_code, response.read())
                    for line in response.iter_lines():
                        stream.heard()
                        event = stream.reader.feed(line)
                        if event is not None:
                            yield event
                problem: Exception = ConnectionError("the stream ended before the job")
            except httpx.TransportError as error:
                problem = error
            time.sleep(stream.broke_off(problem, self.place.url))

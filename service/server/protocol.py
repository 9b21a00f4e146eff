"""uvicorn's HTTP protocol with bounds: it has none on headers, on half-sent requests, or on answers left untaken."""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.server.connections import Connections

_REFUSALS = {
    "header_bytes": (431, "headers-too-large", "the request's headers are longer than this service reads"),
    "header_time": (408, "request-timeout", "the request's headers did not come in time"),
    "body_time": (408, "request-timeout", "the request's body did not come in time"),
    "too_many": (503, "too-many-connections", "too many connections are open; try again later"),
    "too_many_of_address": (503, "too-many-connections", "too many connections from this address are open"),
}


class BoundedProtocol(HttpToolsProtocol):
    """One connection: its requests are bounded in bytes and time, its answers in how long they may wait."""

    def __init__(self, *arguments: Any, connections: Connections, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._connections, self._bounds = connections, connections.bounds
        self._address, self._is_counted, self._is_refused = "", False, False
        self._head_bytes, self._body_bytes, self._body_since_s = 0, 0, 0.0
        self._is_in_body = False
        self._due: asyncio.TimerHandle | None = None
        """When what is missing of the request must have come."""
        self._stalled: asyncio.TimerHandle | None = None
        """When the client must have taken something of the answer."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Let a connection in, or end it."""
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        why = self._connections.enter(self._address)
        self._is_counted = why is None
        if why is None:
            self._expect(self._bounds.header_s, "header_time")
        else:
            self._refuse(why)

    def connection_lost(self, exc: Exception | None) -> None:
        """Give back what the connection held."""
        self._expect_nothing()
        self.resume_writing()
        if self._is_counted:
            self._connections.leave(self._address)
            self._is_counted = False
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take in what came; headers that go on for too long are refused before they are kept."""
        if self._is_refused:
            return
        if not self._is_in_body:
            self._head_bytes += len(data)
            if self._due is None:
                self._expect(self._bounds.header_s, "header_time")
        super().data_received(data)
        if not self._is_in_body and self._head_bytes > self._bounds.header_bytes:
            self._refuse("header_bytes")

    def on_headers_complete(self) -> None:
        """Go on with the body."""
        self._expect_nothing()
        sizes = sum(len(name) + len(value) + 4 for name, value in self.headers)
        if len(self.url) + sizes > self._bounds.header_bytes:
            self._refuse("header_bytes")
            return
        self._is_in_body, self._head_bytes = True, 0
        self._body_bytes, self._body_since_s = 0, self.loop.time()
        self._expect(self._bounds.body_s, "body_time")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Count the body."""
        if not self._is_refused:
            self._body_bytes += len(body)
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Wait for the next request."""
        self._expect_nothing()
        self._is_in_body, self._head_bytes = False, 0
        if not self._is_refused:
            super().on_message_complete()

    def pause_writing(self) -> None:
        """Begin to wait for a client that does not read; uvicorn would for ever."""
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(self._bounds.stalled_s, self._on_stalled)

    def resume_writing(self) -> None:
        """Go on: the client reads again."""
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        super().resume_writing()

    def _expect(self, within_s: float, otherwise: str) -> None:
        self._expect_nothing()
        self._due = self.loop.call_later(within_s, self._on_due, otherwise)

    def _expect_nothing(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _on_due(self, what: str) -> None:
        self._due = None
        if what == "body_time":
            left_s = self._bounds.body_allowance_s(self._body_bytes) - (self.loop.time() - self._body_since_s)
            if self.flow.read_paused:  # it is the service that does not read on
                left_s = max(left_s, self._bounds.body_s)
            if left_s > 0:
                self._expect(left_s, what)
                return
        self._refuse(what)

    def _on_stalled(self) -> None:
        self._stalled = None
        self._connections.refused("stalled")
        self.transport.abort()  # closing would wait for the client to take the rest

    def _refuse(self, what: str) -> None:
        """Say why, unless an answer has begun, and end the connection; the task of a request hears of it."""
        self._connections.refused(what)
        self._is_refused = True
        self._expect_nothing()
        if not self.transport.is_closing() and self._may_answer():
            self.transport.write(_answer(*_REFUSALS[what]))
        self.transport.close()

    def _may_answer(self) -> bool:
        """Return whether the request that is refused has no answer yet, and no other is being answered."""
        if self._is_in_body:
            return self.cycle is not None and not self.cycle.response_started
        return self.cycle is None or self.cycle.response_complete


def _answer(status: int, slug: str, detail: str) -> bytes:
    """Return a refusal as it goes over the wire: no application has seen the request."""
    title = HTTPStatus(status).phrase
    facts = {"type": f"urn:raysync:{slug}", "title": title, "status": status, "detail": detail, "instance": ""}
    body = json.dumps({**facts, "request_id": "", "errors": []})
    retry = "retry-after: 1\r\n" if status == HTTPStatus.SERVICE_UNAVAILABLE else ""
    head = f"HTTP/1.1 {status} {title}\r\ncontent-type: application/problem+json\r\n{retry}"
    return f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n{body}".encode()

"""What every request passes through: an id, host and origin, a size limit, safe headers, a line in the log."""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from raysync.errors import RaysyncError
from service import logs
from service.errors import Forbidden, TooLarge
from service.http.problems import answer, unforeseen
from service.http.prometheus import Metrics

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_OPEN_PATHS = frozenset({"/healthz", "/readyz", "/api/v1/healthz", "/api/v1/readyz"})
_PORTS = {"http": 80, "https": 443}
_CLIENT_GONE = 499
"""What the log says of a request whose client went away, or was sent away, before it was whole."""
_REQUEST_ID = re.compile(r"^[A-Za-z0-9._-]{1,64}$")
_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]

logger = logging.getLogger("service.requests")


class Envelope:
    """Gives a request an id, an answer its headers, and both a line in the log."""

    def __init__(self, app: ASGIApp, metrics: Metrics, is_tls: bool) -> None:
        self._app, self._metrics = app, metrics
        self._headers = [*_HEADERS, *([(b"strict-transport-security", b"max-age=31536000")] if is_tls else [])]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = _header(scope, b"x-request-id")
        id = given if _REQUEST_ID.match(given) else secrets.token_hex(8)
        scope.setdefault("state", {})["request_id"] = id
        mark = logs.request_id.set(id)
        started_s, status, is_stream, has_begun = time.perf_counter(), 500, False, False

        async def sending(message: Message) -> None:
            nonlocal status, is_stream, has_begun
            if message["type"] == "http.response.start":
                status, has_begun = message["status"], True
                present = {name.lower() for name, _ in message["headers"]}
                is_stream = any(value.startswith(b"text/event-stream") for _, value in message["headers"])
                extra = [header for header in self._headers if header[0] not in present]
                message = {**message, "headers": [*message["headers"], *extra, (b"x-request-id", id.encode())]}
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except ClientDisconnect:
            status = _CLIENT_GONE
        except Exception:
            logger.exception("%s %s failed", scope["method"], scope["path"])
            if has_begun:
                raise  # the answer is under way: only cutting it off tells the client
            await unforeseen(scope)(scope, receive, sending)
        finally:
            taken_s = time.perf_counter() - started_s
            route = getattr(scope.get("route"), "path", "(none)")
            if not is_stream:
                self._metrics.observe(scope["method"], route, status, taken_s)
            if scope["path"] not in _OPEN_PATHS:
                self._log(scope, status, taken_s)
            logs.request_id.reset(mark)

    @staticmethod
    def _log(scope: Scope, status: int, taken_s: float) -> None:
        extra: dict[str, Any] = {"status": status, "duration_ms": round(1e3 * taken_s, 1)}
        job = scope.get("path_params", {}).get("id")
        if job:
            extra["job"] = job
        if "caller" in scope["state"]:
            extra["token"] = scope["state"]["caller"]
        logger.info("%s %s", scope["method"], scope["path"], extra=extra)


class Heads:
    """Answers HEAD wherever GET is answered: the same, without its body; a stream ends as soon as it has begun."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b"", "more_body": False})

        scope["method"] = "GET"
        try:
            await self._app(scope, receive, sending)
        finally:
            scope["method"] = "HEAD"


class Guard:
    """Refuses requests for other hosts, from other origins, and with too large a body."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str], limit_bytes: Callable[[str], int]) -> None:
        self._app, self._hosts, self._limit_bytes = app, hosts, limit_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = self._limit_bytes(scope["path"])
        try:
            if scope["path"] not in _OPEN_PATHS:
                self._check_source(scope)
            length = _header(scope, b"content-length")
            if length.isdigit() and int(length) > limit:
                raise TooLarge(limit)
        except RaysyncError as error:
            await answer(scope, error)(scope, receive, send)
            return
        received = 0

        async def receiving() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                raise TooLarge(limit)
            return message

        await self._app(scope, receiving, send)

    def _check_source(self, scope: Scope) -> None:
        """A page of another site must not reach this service through its visitor's browser."""
        host = _host(_header(scope, b"host"))
        if host not in self._hosts:
            raise Forbidden(f"this service is not {host!r}; if it is, start it with --allow-host {host}")
        origin = _header(scope, b"origin")
        own = f"{scope.get('scheme', 'http')}://{_header(scope, b'host')}"
        is_own = _site(origin) is not None and _site(origin) == _site(own)
        if origin and scope["method"] not in _SAFE_METHODS and not is_own:
            raise Forbidden(
                f"requests from pages of {origin!r} are refused: here is {own!r}; behind a TLS proxy that passes on "
                "the name it was asked for, start the service with --trusted-proxy"
            )


def _header(scope: Scope, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")


def _site(url: str) -> tuple[str, str, int] | None:
    """Return scheme, host and port of an origin, or None if it is not one: browsers send no names or paths in it."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError:
        return None
    is_plain = bool(parts.hostname) and "@" not in parts.netloc and not (parts.path or parts.query or parts.fragment)
    return (parts.scheme, (parts.hostname or "").lower(), port) if is_plain else None


def _host(netloc: str) -> str:
    """Return a host without its port."""
    try:
        return (urlsplit(f"//{netloc}").hostname or "").lower()
    except ValueError:
        return ""

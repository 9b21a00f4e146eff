"""`raysync serve`: the service as a process."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn

from service import logs
from service.errors import DatabaseUnavailable, UnsafeBinding
from service.http.deps import Parts
from service.runtime.local_ray import EmbeddedRay
from service.security.auth import Role, create_token
from service.security.redaction import redacted
from service.server.app import create_app
from service.server.connections import Bounds, Connections, within_descriptors
from service.server.lock import bound_socket, held_folder
from service.server.opening import open_when, page_address
from service.server.protocol import BoundedProtocol
from service.server.wiring import build
from service.settings import Settings, environment
from service.store import Store

_DRAIN_S = 5
CLIENT_FILE = "client.json"

logger = logging.getLogger(__name__)


def serve(settings: Settings, say: Callable[[str], None], *, opens: bool = False) -> None:
    """Run the service until it is told to end; what a person should see goes to `say`; the page opens if it is to."""
    logs.configure(settings.log_format)
    with held_folder(settings.folder, settings.url), bound_socket(settings.host, settings.port) as bound:
        check_binding(settings)
        _serve(settings, bound, say, opens)


def _serve(settings: Settings, bound: socket.socket, say: Callable[[str], None], opens: bool) -> None:
    if settings.folder.stat().st_mode & 0o077:
        logger.warning("others can look into %s: chmod 700 it, or give another --data", settings.folder)
    parts, embedded = build(settings)
    token = _first_token(parts.store, settings)
    config = server_config(parts)
    say(f"raysync serves at {settings.url}")
    database = parts.store.database.url.render_as_string(hide_password=True)
    say(f"data {settings.folder}   jobs {redacted(settings.storage_root)}   database {database}")
    say(f"jobs started at once: {settings.live_jobs}; others wait in line")
    say("Ray: " + (settings.ray_address or offer(settings.num_cpus, os.cpu_count() or 1)))
    if token:
        say(f"first token (admin), also in {settings.folder / CLIENT_FILE}: {token}")
    say(
        f"page: {page_address(settings.url, token if token else _own_token(settings) if sys.stdout.isatty() else None)}"
    )
    server = uvicorn.Server(config)
    if opens:
        open_when(lambda: server.started, settings.folder, page_address(settings.url, token or _own_token(settings)))
    try:
        _hear_sigterm()
        server.run([bound])
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is ending: what is left to do has bounds of its own
        _leave(parts, embedded, say)
        parts.store.close()


def offer(num_cpus: int, real: int) -> str:
    """Return what a Ray of the service's own offers, and what that means where the machine has less."""
    told = f"its own, {num_cpus} CPUs offered to jobs"
    if num_cpus <= real:
        return told
    return f"{told}; this machine has {real}, so workers share them (--num-cpus {real} offers what there is)"


def server_config(parts: Parts) -> uvicorn.Config:
    """Return how the application is served."""
    settings = parts.settings
    bounds = Bounds(
        header_bytes=settings.max_header_bytes,
        per_address=settings.max_connections_per_address,
        in_all=settings.max_connections,
    )
    connections = Connections(within_descriptors(bounds), settings.trusted_proxies, parts.metrics.refused)
    protocol: Any = partial(BoundedProtocol, connections=connections)
    return uvicorn.Config(
        create_app(parts),
        loop="uvloop",
        http=protocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies),
        timeout_graceful_shutdown=_DRAIN_S,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )


def end(settings: Settings) -> bool:
    """End the Ray a service left running; return whether there was one."""
    with held_folder(settings.folder, "raysync serve --end"):
        embedded = EmbeddedRay(settings.folder / "ray", environment(), settings.num_cpus)
        was_up = embedded.is_up
        embedded.end()
    return was_up


def check_binding(settings: Settings) -> None:
    """Refuse to be reachable by others before its operator has made tokens for it."""
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise UnsafeBinding("TLS needs both --tls-cert and --tls-key")
    if settings.is_loopback:
        return
    store = Store(settings.database_url)
    try:
        store.database.migrate()
        if store.tokens.count_valid(time.time()) == 0:
            raise UnsafeBinding(
                f"--host {settings.host} can be reached by others, and there is no token yet: make one first with "
                "`raysync token create NAME --role admin`"
            )
    finally:
        store.close()
    if settings.tls_cert is None:
        logger.warning("tokens travel unencrypted: give --tls-cert and --tls-key, or put a TLS proxy in front")


def _first_token(store: Store, settings: Settings) -> str | None:
    """On a fresh database, make the first token and leave it where this user's command line finds it."""
    path = settings.folder / CLIENT_FILE
    if store.tokens.count_valid(time.time()) > 0:
        with contextlib.suppress(OSError, ValueError):
            _write_client(path, settings.url, json.loads(path.read_text())["token"])
        return None
    token = create_token(store.tokens, "first", Role.ADMIN)
    _write_client(path, settings.url, token)
    return token


def _own_token(settings: Settings) -> str | None:
    """Return the token this user's command line has, if it has one: for a person's eyes, not for a log."""
    try:
        return str(json.loads((settings.folder / CLIENT_FILE).read_text())["token"])
    except (OSError, ValueError, KeyError):
        return None


def _write_client(path: Path, url: str, token: str) -> None:
    written = path.with_suffix(".part")
    with os.fdopen(os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump({"url": url, "token": token}, file)
    written.replace(path)


def _hear_sigterm() -> None:
    """Have SIGTERM end the service as Ctrl-C does: uvicorn sends it again when it is done, and unheard it kills."""

    def end_now(number: int, frame: object) -> None:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, end_now)


def _leave(parts: Parts, embedded: EmbeddedRay | None, say: Callable[[str], None]) -> None:
    """End a Ray of our own if nothing runs on it; else say what runs on."""
    running = still_running(parts.manager.left_running, _started(parts))
    if running is None:
        say("stopped; neither Ray nor the database answers, so jobs may run on: `raysync serve --end` ends them")
    elif embedded is None:
        say(f"stopped; {running} jobs run on in Ray" if running else "stopped")
    elif running:
        say(f"stopped; {running} jobs run on in Ray: `raysync serve` finds them again, `raysync serve --end` ends them")
    else:
        embedded.end()
        say("stopped, and its Ray with it")


def still_running(on_cluster: Collection[str] | None, in_books: Collection[str] | None) -> int | None:
    """Return how many jobs run on in Ray, as the cluster says, else as the books do; None if neither answers."""
    known = on_cluster if on_cluster is not None else in_books
    return None if known is None else len(known)


def _started(parts: Parts) -> list[str] | None:
    """Return the jobs the books have as started here and not ended; None if they do not answer."""
    try:
        rows = parts.store.jobs.live()
    except DatabaseUnavailable as error:
        logger.warning("%s", error)
        return None
    here = (None, parts.runtime.address)
    return [row.id for row in rows if row.launches > 0 and row.launched_address in here]

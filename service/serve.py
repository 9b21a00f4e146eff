"""`raysync serve`: the service as a process."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import uvicorn

from service import logs
from service.app import create_app
from service.auth import Role, create_token
from service.embedded import EmbeddedRay
from service.errors import UnsafeBinding
from service.holding import bound_socket, held_folder
from service.settings import Settings, environment
from service.store import Store
from service.wiring import build

_DRAIN_S = 5
CLIENT_FILE = "client.json"

logger = logging.getLogger(__name__)


def serve(settings: Settings, say: Callable[[str], None]) -> None:
    """Run the service until it is told to end; what a person should see goes to `say`."""
    logs.configure(settings.log_format)
    with held_folder(settings.folder, settings.url), bound_socket(settings.host, settings.port) as bound:
        check_binding(settings)
        _serve(settings, bound, say)


def _serve(settings: Settings, bound: socket.socket, say: Callable[[str], None]) -> None:
    parts, embedded = build(settings)
    token = _first_token(parts.store, settings)
    config = uvicorn.Config(
        create_app(parts),
        loop="uvloop",
        http="httptools",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies),
        timeout_graceful_shutdown=_DRAIN_S,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
        h11_max_incomplete_event_size=65536,
    )
    say(f"raysync serves at {settings.url}")
    database = parts.store.database.url.render_as_string(hide_password=True)
    say(f"data {settings.folder}   jobs {settings.storage_root}   database {database}")
    say("Ray: " + (settings.ray_address or f"its own, {settings.num_cpus} CPUs offered to jobs"))
    if token:
        say(f"first token (admin), also in {settings.folder / CLIENT_FILE}: {token}")
    try:
        uvicorn.Server(config).run([bound])
    finally:
        _leave(parts.store, embedded, say)
        parts.store.close()


def end(settings: Settings) -> bool:
    """End the Ray a service left running; return whether there was one."""
    with held_folder(settings.folder, "raysync serve --end"):
        embedded = EmbeddedRay(settings.folder / "ray", environment(), settings.num_cpus)
        was_up = embedded.is_up
        embedded.end()
    return was_up


def check_binding(settings: Settings) -> None:
    """Refuse to be reachable by others before somebody has made tokens for it."""
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


def _write_client(path: Path, url: str, token: str) -> None:
    written = path.with_suffix(".part")
    with os.fdopen(os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump({"url": url, "token": token}, file)
    written.replace(path)


def _leave(store: Store, embedded: EmbeddedRay | None, say: Callable[[str], None]) -> None:
    """End a Ray of our own if nothing runs on it; else say what runs on."""
    live = len(store.jobs.live())
    if embedded is None:
        say(f"stopped; {live} jobs run on in Ray" if live else "stopped")
    elif live:
        say(f"stopped; {live} jobs run on in Ray: `raysync serve` finds them again, `raysync serve --end` ends them")
    else:
        embedded.end()
        say("stopped, and its Ray with it")

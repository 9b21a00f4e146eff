"""The composition root: the service wired to its database and to the gateway of the Ray runtime."""

from __future__ import annotations

import os
import sys
import time

from service.auth import Authenticator
from service.deps import Parts
from service.embedded import EmbeddedRay
from service.feed import Feeds
from service.gateway import GatewayRuntime
from service.manager import Manager
from service.packages import Limits, remove_unknown, unpack
from service.prometheus import Metrics
from service.quota import Quota
from service.runtime import Runtime
from service.settings import Settings, environment
from service.store import Store
from service.tender import Tender

_DAY_S = 86_400.0


def build(settings: Settings) -> tuple[Parts, EmbeddedRay | None]:
    """Return the service wired to the database and the Ray its settings name, and that Ray if it is its own."""
    store = Store(settings.database_url)
    store.database.migrate()
    embedded, env = None, dict(environment())
    if settings.ray_address is None:
        embedded = EmbeddedRay(settings.folder / "ray", env, settings.num_cpus)
        env = embedded.env
    runtime = GatewayRuntime(
        address=embedded.address if embedded is not None else lambda: str(settings.ray_address),
        command=lambda address, endpoint: (sys.executable, "-m", "actors.gateway", address, endpoint, str(os.getpid())),
        env=env,
        log=settings.folder / "gateway.log",
        give_up=embedded.give_up if embedded is not None else lambda: None,
    )
    return assemble(settings, store, runtime), embedded


def assemble(settings: Settings, store: Store, runtime: Runtime) -> Parts:
    """Return the service around a database and a runtime."""
    limits = Limits(settings.max_package_files, settings.max_unpacked_bytes)

    def unpacked(id: str) -> str:
        return str(unpack(store.packages.content(id), settings.folder / "packages" / id, limits))

    def cleared() -> None:
        store.packages.clear(time.time() - settings.package_days * _DAY_S)
        remove_unknown(settings.folder / "packages", store.packages.ids())

    feeds = Feeds(store)
    tender = Tender(
        store,
        runtime,
        feeds,
        storage=settings.storage_root,
        unpack=unpacked,
        events_per_job=settings.events_per_job,
    )
    return Parts(
        settings,
        store,
        runtime,
        feeds,
        Manager(store, runtime, tender, cleared),
        Authenticator(store.tokens),
        Metrics(store, runtime, feeds),
        Quota(settings.max_streams_per_token),
    )

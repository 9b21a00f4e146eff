"""The composition root: the service wired to its database and to the gateway of the Ray runtime."""

from __future__ import annotations

import os
import sys
import time
from functools import partial

from service.http.deps import Parts
from service.http.entering import trial_entered
from service.http.prometheus import Metrics
from service.http.readiness import WriteProbe
from service.http.routes.stream import SHOWN
from service.jobs.feed import Feeds
from service.jobs.follower import Follower
from service.jobs.housekeeping import Housekeeping
from service.jobs.intake import Intake
from service.jobs.log_feed import LogFeeds
from service.jobs.manager import Manager
from service.jobs.packages import Limits, remove_unknown, unpack
from service.jobs.workers import Workers
from service.runtime.gateway import GatewayRuntime
from service.runtime.local_ray import EmbeddedRay
from service.runtime.port import AsyncRuntime
from service.security.auth import Authenticator
from service.security.quota import Quota
from service.security.scrubbing import without_own
from service.settings import Settings, environment
from service.store import Store
from service.store.reading import Pools
from service.streams.hub import Hub
from service.streams.multiplex import Multiplex
from service.streams.source import Source
from service.studies.keeper import Keeper, Start

_DAY_S = 86_400.0
_THREADS = 16
"""For what the service does on its own."""


def build(settings: Settings) -> tuple[Parts, EmbeddedRay | None]:
    """Return the service wired to the database and the Ray its settings name, and that Ray if it is its own."""
    store = Store(settings.database_url)
    store.database.migrate()
    embedded, env = None, without_own(environment())
    if settings.ray_address is None:
        embedded = EmbeddedRay(settings.folder / "ray", env, settings.num_cpus, settings.pass_env, settings.warm > 0)
        env = embedded.env
    warm = "0" if embedded is None else str(settings.warm)
    runtime = GatewayRuntime(
        name=embedded.name if embedded is not None else str(settings.ray_address),
        address=embedded.address if embedded is not None else lambda: str(settings.ray_address),
        command=lambda *where: (sys.executable, "-m", "actors.gateway", *where, str(os.getpid()), warm),
        env=env,
        log=settings.folder / "gateway.log",
        give_up=embedded.give_up if embedded is not None else lambda: None,
    )
    if settings.replaces_ray is not None:
        store.jobs.move(settings.replaces_ray, runtime.address)
    address = embedded.address if embedded is not None else lambda: str(settings.ray_address)
    return assemble(settings, store, runtime, Start(address, _study_command, env)), embedded


def _study_command(folder: str, address: str, endpoint: str) -> tuple[str, ...]:
    return sys.executable, "-m", "tune_configs.process", folder, address, endpoint, str(os.getpid())


def assemble(settings: Settings, store: Store, runtime: AsyncRuntime, start: Start | None = None) -> Parts:
    """Return the service around a database and a runtime; `start` says how studies are run."""
    start = start or Start(lambda: runtime.address, _study_command, environment())
    limits = Limits(settings.max_package_files, settings.max_unpacked_bytes)

    def unpacked(id: str) -> str:
        return str(unpack(store.packages.content(id), settings.folder / "packages" / id, limits))

    def cleared() -> None:
        store.packages.clear(time.time() - settings.package_days * _DAY_S)
        remove_unknown(settings.folder / "packages", store.packages.ids())

    pools, workers, authenticator = Pools(), Workers("jobs", _THREADS), Authenticator(store.tokens)
    feeds = Feeds(store, pools)
    intake = Intake(store, runtime, feeds, workers, settings.events_per_job)
    follower = Follower(store, runtime, intake, workers, storage=settings.storage_root, unpack=unpacked)
    housekeeping = Housekeeping(
        store, runtime, Workers("housekeeping", 2), clear_packages=cleared, take_uses=authenticator.take_uses
    )
    manager = Manager(store, runtime, follower, housekeeping, settings.live_jobs)
    hub = Hub(store, pools)
    feeds.on_hint = hub.hint
    enter = partial(trial_entered, store, settings)
    return Parts(
        settings,
        store,
        runtime,
        feeds,
        manager,
        authenticator,
        Metrics(store, runtime, feeds, settings.live_jobs),
        Quota(settings.max_streams_per_token, store.tokens, pools),
        pools,
        LogFeeds(store, runtime, pools),
        WriteProbe(store.database.probe),
        Keeper(store, runtime, manager, pools, settings.folder / "studies", start, enter),
        Multiplex(Source(hub, store, pools, SHOWN), feeds),
    )

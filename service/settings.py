"""How a service runs. The only place that reads the environment: every field is also `RAYSYNC_<NAME>`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from raysync.ports import check_ray_address

DEFAULT_PORT = 8420
MEBIBYTE = 1 << 20
_LIVE_ON_CLUSTER = 64
"""How large a cluster grows that the service joined is not known: its head carries so many controllers with ease."""


class Settings(BaseSettings):
    """Everything an operator can set."""

    model_config = SettingsConfigDict(env_prefix="RAYSYNC_", frozen=True, extra="ignore")

    host: str = "127.0.0.1"
    port: int = Field(default=DEFAULT_PORT, ge=0, le=65535)
    data: Path = Path("~/.raysync")
    """The service's own folder: database, first token, packages, its own Ray."""
    database: str | None = Field(default=None, min_length=1)
    """A database URL; None is a SQLite file in `data`."""
    storage: str = "~/raysync_results"
    """Where the folders of jobs go: a path all nodes see, or a URI."""
    ray_address: Annotated[str, AfterValidator(check_ray_address)] | None = None
    """A cluster to join; None starts a Ray of the service's own on this machine."""
    num_cpus: int = Field(default_factory=lambda: max(8, os.cpu_count() or 1), ge=1)
    """How many CPUs a Ray of the service's own offers to jobs."""
    warm: int = Field(default=7, ge=0, le=256)
    """How many processes a Ray of the service's own keeps ready for the next job: controller, workers and shards."""
    max_live_jobs: int | None = Field(default=None, ge=1, le=100_000)
    """So many jobs are started at once; the others wait in line. None: see `live_jobs`."""
    replaces_ray: str | None = Field(default=None, min_length=1)
    """The address, as jobs' reasons name it, of a cluster that is gone for good: its jobs are looked for here."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    allow_hosts: tuple[str, ...] = ()
    """Further names this service is reached by; requests for other names are refused."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses of proxies whose X-Forwarded-For is believed; of no proxy's by default."""
    allow_entrypoints: tuple[str, ...] = ()
    """Patterns of `module:name` that custom tasks may use without sending their code, such as `my_team.*`."""
    no_user_code: bool = False
    """Take no packages, no pip requirements and no custom tasks: operators run built-in tasks only."""
    data_root: Annotated[Path, AfterValidator(lambda path: path.expanduser().absolute())] | None = None
    """Where built-in tasks may read files; None is nowhere."""
    pass_env: tuple[str, ...] = ()
    """Environment variables that the service's own Ray gets besides the harmless ones, such as AWS_PROFILE."""
    events_per_job: int = Field(default=1_000_000, ge=1000)
    """Above this, older metrics of a job are thinned out."""
    max_body_bytes: int = Field(default=MEBIBYTE, ge=1024)
    max_package_bytes: int = Field(default=32 * MEBIBYTE, ge=1024)
    max_unpacked_bytes: int = Field(default=256 * MEBIBYTE, ge=1024)
    max_package_files: int = Field(default=2000, ge=1)
    max_streams_per_token: int = Field(default=500, ge=1)
    max_header_bytes: int = Field(default=65536, ge=4096)
    max_connections: int = Field(default=10_000, ge=1)
    """Open at once; fewer where the process may not have so many descriptors."""
    max_connections_per_address: int = Field(default=1000, ge=1)
    """Of one client address, trusted proxies excepted; at most half of all."""
    package_days: float = Field(default=7.0, gt=0)
    """A package that no job on the books uses is cleared away so long after it was last sent."""
    log_format: Literal["auto", "json", "text"] = "auto"

    @property
    def folder(self) -> Path:
        """The service's own folder, made if it is not there, so that only its user can look into it.

        One that was there keeps its mode: its user made it, and it may hold more. What is secret is guarded itself.
        """
        folder = self.data.expanduser().absolute()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder

    @property
    def live_jobs(self) -> int:
        """How many jobs are started at once: as many as could train on a Ray of the service's own, one CPU each."""
        return self.max_live_jobs or (self.num_cpus if self.ray_address is None else _LIVE_ON_CLUSTER)

    @property
    def database_url(self) -> str:
        """Where the books are."""
        return self.database or f"sqlite:///{self.folder / 'raysync.db'}"

    @property
    def storage_root(self) -> str:
        """Where the folders of jobs go, the same from everywhere."""
        return self.storage if "://" in self.storage else str(Path(self.storage).expanduser().absolute())

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the service."""
        return is_loopback(self.host)

    @property
    def url(self) -> str:
        """Where the service is reached from this machine."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host
        return f"{'https' if self.tls_cert else 'http'}://{f'[{host}]' if ':' in host else host}:{self.port}"


class ClientSettings(BaseSettings):
    """Where the command line and the Python client find the service, if they are not told."""

    model_config = SettingsConfigDict(env_prefix="RAYSYNC_", frozen=True, extra="ignore")

    url: str | None = None
    token: str | None = None
    data: Path = Path("~/.raysync")


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine and no other: an address is judged as one, a name must be its name."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def environment() -> Mapping[str, str]:
    """Return the environment for processes the service starts."""
    return dict(os.environ)

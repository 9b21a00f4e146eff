"""raysync: semi-synchronous training over slow, uneven, unreliable networks.

    from raysync import Client, JobSpec, attach, fit, submit

This package holds the algorithms, without Ray; `fit`, `submit` and `attach` live in `actors`, the clients in `service`,
and each is brought when it is asked for. Importing `raysync` alone loads none of ray, torch and fastapi.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from actors import Job, Result, attach, fit, submit
    from raysync.spec import JobSpec, read_spec
    from service.client import AsyncClient, Client

__version__ = "0.1.0"

_HOMES = {
    **dict.fromkeys(("Job", "Result", "attach", "fit", "submit"), "actors"),
    **dict.fromkeys(("JobSpec", "read_spec"), "raysync.spec"),
    **dict.fromkeys(("AsyncClient", "Client"), "service.client"),
}

__all__ = ["AsyncClient", "Client", "Job", "JobSpec", "Result", "attach", "fit", "read_spec", "submit"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

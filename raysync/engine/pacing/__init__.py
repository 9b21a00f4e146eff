"""Who waits for whom, one file per way: `lock_step` decides about a step for all workers at once, `bounded` lets each
go on within a bound. The coordinator holds one of them and does not ask which.

To add a pacing: write its file, and name it in the table below.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from raysync.engine.pacing.base import Desk, Pacing
from raysync.engine.pacing.bounded import Bounded
from raysync.engine.pacing.free_running import FreeRunning
from raysync.engine.pacing.lock_step import LockStep
from raysync.spec import JobSpec

PACINGS: Mapping[str, type[Pacing]] = MappingProxyType(
    {"lock_step": LockStep, "bounded": Bounded, "free_running": FreeRunning}
)


def pacing_of(spec: JobSpec) -> type[Pacing]:
    """Return who waits for whom in a job."""
    return PACINGS[spec.strategy.needs.pacing]


__all__ = ["PACINGS", "Bounded", "Desk", "FreeRunning", "LockStep", "Pacing", "pacing_of"]

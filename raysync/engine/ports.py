"""What a host may lend a core: a probe to watch it, and a keeper for its state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Probe = Callable[[str], None]
"""Called at every named point of the protocol; a fault injector ends the core there by raising."""

Keep = Callable[[int, str, dict[str, Any]], None]
"""Called with (checkpoint number, address, state) when a core contributes to a checkpoint."""


Measured = Callable[[], dict[str, float]]
"""Called for every report: what the host has measured of the step before, such as how long it took."""


def no_probe(point: str) -> None:
    """Watch nothing."""


def nothing_measured() -> dict[str, float]:
    """Measure nothing."""
    return {}


def keep_nothing(snapshot: int, address: str, state: dict[str, Any]) -> None:
    """Keep no state."""

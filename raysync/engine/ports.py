"""What a host may lend a core: a probe to watch it, and what it measures of it."""

from __future__ import annotations

from collections.abc import Callable

Probe = Callable[[str], None]
"""Called at every named point of the protocol; a fault injector ends the core there by raising."""

Measured = Callable[[], dict[str, float]]
"""Called for every report: what the host has measured of the step before, such as how long it took."""


def no_probe(point: str) -> None:
    """Watch nothing."""


def nothing_measured() -> dict[str, float]:
    """Measure nothing."""
    return {}

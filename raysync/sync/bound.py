"""The staleness bound: who may read, as a pure function of everybody's clocks (Bosen's rule, parked at read time)."""

from __future__ import annotations

from collections.abc import Mapping


def may_read(clock: int, pushed: Mapping[int, int], bound: int) -> tuple[bool, str]:
    """Return whether a worker may read the parameters for `clock`, and why.

    `pushed` maps every live worker to the last clock whose update the server holds (-1 for none). Reading for clock
    c needs all updates of clocks 0 .. c - bound - 1.
    """
    slowest = min(pushed, key=lambda worker: (pushed[worker], worker))
    needed = clock - bound - 1
    if pushed[slowest] >= needed:
        return True, f"all workers have pushed clock {needed} or later"
    return False, f"worker {slowest} has pushed clock {pushed[slowest]}, reading for clock {clock} needs {needed}"


def staleness(clock: int, pushed: Mapping[int, int]) -> int:
    """Return how many clocks of the slowest worker are missing from what a reader at `clock` sees."""
    return max(0, clock - 1 - min(pushed.values()))

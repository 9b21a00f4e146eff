"""The staleness bound: who may read, as a pure function of the slowest clock (Bosen's rule, parked at read time)."""

from __future__ import annotations


def may_read(clock: int, low_clock: int, bound: int) -> tuple[bool, str]:
    """Return whether a worker may read the parameters for `clock`, and why.

    `low_clock` is the last clock whose updates the server holds from every live worker (-1 for none). Reading for
    clock c needs all updates of clocks 0 .. c - bound - 1.
    """
    needed = clock - bound - 1
    if low_clock >= needed:
        return True, f"all workers have pushed clock {needed} or later"
    return False, f"the slowest worker has pushed clock {low_clock}, reading for clock {clock} needs {needed}"


def staleness(clock: int, low_clock: int) -> int:
    """Return how many clocks of the slowest worker are missing from what a reader at `clock` sees."""
    return max(0, clock - 1 - low_clock)

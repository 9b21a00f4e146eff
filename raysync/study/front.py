"""Which trials no other beats on both counts, and how much of the possible they cover.

Costs are to be small. Qualities are given so that more is better: turn the sign of those of which less is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Scored(NamedTuple):
    """A trial as a point in the plane."""

    number: int
    cost: float
    quality: float


def dominates(one: Scored, other: Scored) -> bool:
    """Return whether one is at least as good on both counts, and better on one."""
    at_least = one.cost <= other.cost and one.quality >= other.quality
    return at_least and (one.cost < other.cost or one.quality > other.quality)


def front(scored: Sequence[Scored]) -> list[Scored]:
    """Return those that no other dominates, cheapest first; of equals the first."""
    found: list[Scored] = []
    for one in sorted(scored, key=lambda s: (s.cost, -s.quality, s.number)):
        if not found or one.quality > found[-1].quality:
            found.append(one)
    return found


def knee(on_front: Sequence[Scored]) -> Scored:
    """Return where the front bends most: the point furthest from the line between its ends, costs by their logarithm,
    both axes of length one.
    """
    first, last = on_front[0], on_front[-1]
    width = math.log(last.cost) - math.log(first.cost) if first.cost > 0 and last.cost > first.cost else 0.0
    height = last.quality - first.quality
    if len(on_front) < 3 or not width or not height:
        return first

    def distance(one: Scored) -> float:
        across, up = (math.log(one.cost) - math.log(first.cost)) / width, (one.quality - first.quality) / height
        return up - across

    return max(on_front, key=distance)


def hypervolume(scored: Sequence[Scored], worst_cost: float, worst_quality: float) -> float:
    """Return the area that is dominated, up to the worst cost and quality that count, costs by their logarithm."""
    area, left = 0.0, math.log(worst_cost)
    for one in reversed([one for one in front(scored) if one.cost < worst_cost and one.quality > worst_quality]):
        at = math.log(max(one.cost, 1e-12))
        area += (left - at) * (one.quality - worst_quality)
        left = at
    return area

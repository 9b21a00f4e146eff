"""Where a chain of layers is cut into stages: the cut whose dearest stage is cheapest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")


def put_together(parts: Sequence[Mapping[str, T]]) -> dict[str, T]:
    """Return what all stages hold by name, under the names it has in them; with the stage's number before it where two
    stages use the same.
    """
    if sum(map(len, parts)) == len({name for part in parts for name in part}):
        return {name: value for part in parts for name, value in part.items()}
    return {f"{stage}.{name}": value for stage, part in enumerate(parts) for name, value in part.items()}


def cut_evenly(costs: Sequence[float], stages: int) -> tuple[range, ...]:
    """Return which layers each stage has, at least one each; of equal cuts the one that loads later stages less, since
    earlier ones hold more versions and activations.
    """
    if not 1 <= stages <= len(costs):
        raise ValueError(f"{len(costs)} layers cannot be cut into {stages} stages")
    sums = [0.0]
    for cost in costs:
        sums.append(sums[-1] + cost)

    @cache
    def best(first: int, left: int) -> tuple[float, int]:
        """Return the cost of the dearest of `left` stages from a layer on, and where the first of them ends."""
        if left == 1:
            return sums[-1] - sums[first], len(costs)
        ends = range(first + 1, len(costs) - left + 2)
        return min((max(sums[end] - sums[first], best(end, left - 1)[0]), end) for end in ends)

    edges = [0]
    for left in range(stages, 0, -1):
        edges.append(best(edges[-1], left)[1])
    return tuple(range(first, last) for first, last in pairwise(edges))

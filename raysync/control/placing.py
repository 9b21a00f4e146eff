"""Where a job's actors go: pure functions from free resources to a node for each, or to what is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

Resources = Mapping[str, float]


class Shortage(NamedTuple):
    """Why it does not fit."""

    reason: str


def place(
    count: int,
    demand: Resources,
    free: Mapping[str, Resources],
    strategy: Literal["spread", "pack"],
    taken: Mapping[str, int] | None = None,
) -> list[str] | Shortage:
    """Return a node for each of `count` workers that need `demand`, or say what is missing.

    `taken` tells how many of the job's workers each node has already: `spread` goes where there are fewest, `pack`
    where there are most. Ties go to the node with more room, then by name.
    """
    room = {node: _fits(demand, resources) for node, resources in free.items()}
    crowd = {node: (taken or {}).get(node, 0) for node in free}
    chosen: list[str] = []
    sign = 1 if strategy == "spread" else -1
    for _ in range(count):
        open_nodes = [node for node, left in room.items() if left > 0]
        if not open_nodes:
            return Shortage(_missing(count, demand, free))
        node = min(open_nodes, key=lambda node: (sign * crowd[node], -room[node], node))
        chosen.append(node)
        room[node] -= 1
        crowd[node] += 1
    return chosen


class Seats(NamedTuple):
    """Where coordinator and shards go."""

    coordinator: str
    """A node that trains: one that does not may be far from all of them."""
    shards: dict[int, str]
    """The node of each shard that is an actor of its own."""
    guests: list[tuple[int, ...]]
    """The shards inside each worker's process."""


def seat_servers(nodes: Sequence[str], num_shards: int, shards_in: Literal["actors", "workers"]) -> Seats:
    """Return where coordinator and shards go, given the node of each worker.

    Shards go beside the workers, or into them, in turn: what a shard and a worker of one node say to each other stays
    there.
    """
    turns = [shard % len(nodes) for shard in range(num_shards)]
    if shards_in == "workers":
        guests = [tuple(shard for shard in range(num_shards) if turns[shard] == worker) for worker in range(len(nodes))]
        return Seats(nodes[0], {}, guests)
    return Seats(nodes[0], {shard: nodes[turn] for shard, turn in enumerate(turns)}, [()] * len(nodes))


def _fits(demand: Resources, free: Resources) -> int:
    counts = [int(free.get(name, 0.0) / need + 1e-9) for name, need in demand.items() if need > 0]
    return min(counts, default=1_000_000)


def _missing(count: int, demand: Resources, free: Mapping[str, Resources]) -> str:
    fits = sum(_fits(demand, resources) for resources in free.values())
    needs = ", ".join(f"{_number(need)} {name}" for name, need in demand.items() if need > 0)
    there = ", ".join(
        f"{_number(sum(resources.get(name, 0.0) for resources in free.values()))} {name}" for name in demand
    )
    plural = "s" if count > 1 else ""
    return (
        f"{count} worker{plural} need {needs} each; {fits} fit{'s' if fits == 1 else ''} now "
        f"({there} free on {len(free)} node{'s' if len(free) != 1 else ''})"
    )


def _number(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".")

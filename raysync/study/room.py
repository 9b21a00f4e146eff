"""How many jobs a cluster holds at once, and whether it ever will hold one."""

from __future__ import annotations

from collections.abc import Mapping

from raysync.control.placing import Resources, Shortage, Wanted, demand_of, place_all, replica_of
from raysync.spec import JobSpec


def at_once(spec: JobSpec, nodes: Mapping[str, Resources], most: int) -> int:
    """Return how many jobs like this one nodes have room for, but no more than `most`."""
    demand, left = demand_of(spec.scale), {node: dict(resources) for node, resources in nodes.items()}
    for count in range(most):
        placed = _placed(spec, left)
        if isinstance(placed, Shortage):
            return count
        for node in placed:
            for name, need in demand.items():
                left[node][name] = left[node].get(name, 0.0) - need
    return most


def never(spec: JobSpec, nodes: Mapping[str, Resources]) -> str | None:
    """Return why nodes can never hold a job, were they all free; None if they can."""
    placed = _placed(spec, nodes, total=nodes)
    return placed.reason if isinstance(placed, Shortage) else None


def _placed(
    spec: JobSpec, free: Mapping[str, Resources], total: Mapping[str, Resources] | None = None
) -> list[str] | Shortage:
    who = [address for index in range(spec.scale.workers) for address in replica_of(spec, index)]
    return place_all(who, Wanted(demand_of(spec.scale), spec.scale.placement, {}, {}), free, total)

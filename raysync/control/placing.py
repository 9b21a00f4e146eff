"""Where a job's actors go: pure functions from free resources to a node for each, or to what is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from raysync.address import COORDINATOR, EVALUATOR, Address, Role, shard, stage, worker
from raysync.spec import JobSpec, Scale

Resources = Mapping[str, float]


def servers_of(spec: JobSpec) -> tuple[Address, ...]:
    """Return the cores a job has beside its workers, whatever their number."""
    evaluators = (EVALUATOR,) if spec.has_evaluator else ()
    first = [*(shard(slot) for slot in range(spec.scale.shards)), *(found for found in first_backups(spec) if found)]
    shards = [found.at(stage) for found in first for stage in range(spec.scale.stages)]
    return (COORDINATOR, *shards, *evaluators)


def first_backups(spec: JobSpec) -> tuple[Address | None, ...]:
    """Return who follows each shard when the job starts; whoever follows the shard of slot s has the number s and a
    multiple of the number of shards.
    """
    count = spec.scale.shards
    return tuple(shard(slot + count) if spec.scale.replicas else None for slot in range(count))


def slot_of(spec: JobSpec, server: Address) -> Address:
    """Return the address that a shard's state is kept under, whoever serves the slot."""
    if server.role is not Role.SHARD:
        return server
    return Address(Role.SHARD, server.stage, server.index % spec.scale.shards)


def with_backups(spec: JobSpec, num_nodes: int) -> JobSpec:
    """Return the job with the number of backups worked out where it is left open: one for each shard, where there are
    several shards or nodes, so that no process or node has both.
    """
    if spec.scale.replicas is not None:
        return spec
    replicas = 1 if spec.scale.shards > 1 or num_nodes > 1 else 0
    return spec.model_copy(update={"scale": spec.scale.model_copy(update={"replicas": replicas})})


def replica_of(spec: JobSpec, index: int) -> tuple[Address, ...]:
    """Return the cores of one data-parallel replica: a worker, or the stages of a pipeline."""
    if spec.scale.stages == 1:
        return (worker(index),)
    return tuple(stage(number, index) for number in range(spec.scale.stages))


class Shortage(NamedTuple):
    """Why it does not fit."""

    reason: str
    is_lasting: bool = False
    """It would not fit if the whole cluster were free, and no autoscaler adds nodes."""


def demand_of(scale: Scale) -> dict[str, float]:
    """Return what one worker needs."""
    return {"CPU": scale.cpus_per_worker, **({"GPU": scale.gpus_per_worker} if scale.gpus_per_worker else {})}


def place(
    count: int,
    demand: Resources,
    free: Mapping[str, Resources],
    strategy: Literal["spread", "pack"],
    taken: Mapping[str, int] | None = None,
    total: Mapping[str, Resources] | None = None,
) -> list[str] | Shortage:
    """Return a node for each of `count` workers that need `demand`, or say what is missing.

    `taken` tells how many of the job's workers each node has already: `spread` goes where there are fewest, `pack`
    where there are most. Ties go to the node with more room, then by name. `total` is what the nodes have when nothing
    runs on them, given where no autoscaler adds more: with it a job that can never fit is told so.
    """
    room = {node: _fits(demand, resources) for node, resources in free.items()}
    crowd = {node: (taken or {}).get(node, 0) for node in free}
    chosen: list[str] = []
    sign = 1 if strategy == "spread" else -1
    for _ in range(count):
        open_nodes = [node for node, left in room.items() if left > 0]
        if not open_nodes:
            return _lacking(count, demand, free, total, sum((taken or {}).values()))
        node = min(open_nodes, key=lambda node: (sign * crowd[node], -room[node], node))
        chosen.append(node)
        room[node] -= 1
        crowd[node] += 1
    return chosen


class Wanted(NamedTuple):
    """What members of a job need, and where others of it are."""

    demand: Resources
    strategy: Literal["spread", "pack"]
    taken: Mapping[str, int]
    """How many each node has already."""
    near: Mapping[int, str | None]
    """The node of a stage of each pipeline that is there."""


def place_all(
    who: Sequence[Address],
    wanted: Wanted,
    free: Mapping[str, Resources],
    total: Mapping[str, Resources] | None = None,
) -> list[str] | Shortage:
    """Return a node for each worker or stage. A pipeline's neighbours come close, the replicas of a stage apart: each
    pipeline goes to one node as a whole where it fits, and to as few as possible where it does not.
    """
    if not who or who[0].role is not Role.STAGE:
        return place(len(who), wanted.demand, free, wanted.strategy, wanted.taken, total)
    nodes: dict[Address, str] = {}
    left = {node: dict(resources) for node, resources in free.items()}
    taken = dict(wanted.taken)
    for index in sorted({address.index for address in who}):
        stages = sorted(address for address in who if address.index == index)
        node = wanted.near.get(index)
        has_room = node is not None and node in left and _fits(wanted.demand, left[node]) >= len(stages)
        chosen = [node] * len(stages) if node is not None and has_room else None
        if chosen is None:
            whole = {name: need * len(stages) for name, need in wanted.demand.items()}
            found = place(1, whole, left, wanted.strategy, taken)
            chosen = [found[0]] * len(stages) if not isinstance(found, Shortage) else None
        if chosen is None:
            apart = place(len(stages), wanted.demand, left, "pack", None)
            if isinstance(apart, Shortage):
                return _lacking(len(who), wanted.demand, free, total, sum(wanted.taken.values()))
            chosen = apart
        for stage_address, name in zip(stages, chosen, strict=True):
            nodes[stage_address] = name
            taken[name] = taken.get(name, 0) + 1
            for kind, need in wanted.demand.items():
                left[name][kind] = left[name].get(kind, 0.0) - need
    return [nodes[address] for address in who]


class Seats(NamedTuple):
    """Where coordinator and shards go."""

    coordinator: str
    """A node that trains: one that does not may be far from all of them."""
    shards: list[tuple[tuple[Address, ...], str]]
    """The shards of each process that has only shards, and its node."""
    guests: list[tuple[Address, ...]]
    """The shards inside each worker's process."""


def seat_servers(
    nodes: Sequence[str], num_shards: int, shards_in: Literal["actors", "workers"], num_backups: int = 0
) -> Seats:
    """Return where coordinator and shards go, given the node of each worker.

    Shards go beside the workers, or into them, in turn: what a shard and a worker of one node say to each other stays
    there. A backup goes into the process of the next shard, so that none has both; to another node, if there is one.
    """
    guests: list[list[Address]] = [[] for _ in nodes]
    processes: list[tuple[list[Address], str]] = []
    for slot in range(num_shards):
        if shards_in == "workers":
            guests[slot % len(nodes)].append(shard(slot))
        else:
            processes.append(([shard(slot)], nodes[slot % len(nodes)]))
    for slot in range(num_shards if num_backups else 0):
        backup, turn = shard(slot + num_shards), slot % len(nodes)
        if shards_in == "workers" and len(nodes) > 1:
            guests[(turn + 1) % len(nodes)].append(backup)
        elif shards_in == "actors" and num_shards > 1:
            processes[(slot + 1) % num_shards][0].append(backup)
        else:
            processes.append(([backup], elsewhere(nodes[turn], nodes)))
    return Seats(nodes[0], [(tuple(found), node) for found, node in processes], [tuple(found) for found in guests])


def elsewhere(node: str | None, nodes: Sequence[str]) -> str:
    """Return a node other than one, if there is another."""
    return next((other for other in nodes if other != node), nodes[0])


def _fits(demand: Resources, free: Resources) -> int:
    counts = [int(free.get(name, 0.0) / need + 1e-9) for name, need in demand.items() if need > 0]
    return min(counts, default=1_000_000)


def _lacking(
    count: int, demand: Resources, free: Mapping[str, Resources], total: Mapping[str, Resources] | None, taken: int
) -> Shortage:
    plural = f"{count} workers need" if count > 1 else "1 worker needs"
    needs = ", ".join(f"{_number(need)} {name}" for name, need in demand.items() if need > 0)
    fits = sum(_fits(demand, resources) for resources in free.values())
    now = f"{plural} {needs}{' each' if count > 1 else ''}; {fits} fit{'s' if fits == 1 else ''} now"
    most = None if total is None else sum(_fits(demand, resources) for resources in total.values())
    if total is None or most is None or most >= count + taken:
        return Shortage(f"{now} ({_sums(demand, free)} free on {_nodes(free)})")
    beside = f" beside the {taken} there are" if taken else ""
    return Shortage(
        f"{now}, and {count}{beside} never will: this cluster has {_sums(demand, total)} on {_nodes(total)}, room for "
        f"{most}. {_remedy(demand, total, count + taken)}",
        is_lasting=True,
    )


def _remedy(demand: Resources, total: Mapping[str, Resources], count: int) -> str:
    """Return what would make room, naming the fields of what there is too little of."""
    alone = {name: sum(_fits({name: need}, nodes) for nodes in total.values()) for name, need in demand.items()}
    short = [name for name, fits in alone.items() if fits < count] or list(demand)
    fields = [{"CPU": "scale.cpus_per_worker", "GPU": "scale.gpus_per_worker"}.get(name, name) for name in short]
    hint = " (to a Ray that raysync serve started: --num-cpus)" if "CPU" in short else ""
    return f"Lower {' or '.join(['scale.workers', *fields])}, or add nodes{hint}"


def _sums(demand: Resources, nodes: Mapping[str, Resources]) -> str:
    return ", ".join(
        f"{_number(sum(resources.get(name, 0.0) for resources in nodes.values()))} {name}" for name in demand
    )


def _nodes(nodes: Mapping[str, Resources]) -> str:
    return f"{len(nodes)} node{'s' if len(nodes) != 1 else ''}"


def _number(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".")

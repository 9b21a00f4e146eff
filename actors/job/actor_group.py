"""The actors of one job and the room they take: made, introduced, watched and cleared away. Nothing is decided here."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import ray
from ray.exceptions import RayError
from ray.util.placement_group import (
    PlacementGroup,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from actors.job.actor_record import ActorRecord, clear, sweep_after
from actors.job.cluster import Resources, grows, resources
from actors.job.link_choice import check_newcomers, choose_link
from actors.job.packages import Environments
from actors.shell.core_actor import Assignment
from raysync.address import Address, Role, worker
from raysync.control.placing import (
    Shortage,
    Wanted,
    demand_of,
    elsewhere,
    place_all,
    replica_of,
    seat_servers,
    servers_of,
)
from raysync.control.reconcile import ActorSeen, Life
from raysync.control.roles import ROLES, Room, found
from raysync.spec import JobSpec

Reservation = tuple[str, PlacementGroup]
"""A node and the room reserved on it."""

NAMESPACE = "raysync"
CONTROLLER = "controller"
_RESERVE_S = 5.0
_MET_S = 5.0
"""So long newcomers wait until all others have heard of them; one that is frozen hears of them when it wakes."""


class ActorGroup:
    """All members of a job."""

    def __init__(self, job: str, spec: JobSpec, base: Assignment, envs: Environments, controller: Any) -> None:
        self._job, self._spec, self._base, self._envs = job, spec, base, envs
        self._controller = controller
        self.members: dict[Address, ActorRecord] = {}
        """By name: the address of the first core."""
        self.next_worker = 0
        self.life = 0
        """How often the job has been started; part of the actors' names."""
        self.draining: frozenset[str] = frozenset()
        """Nodes that are about to go."""
        self.link: str | None = None
        self.link_reason = ""

    # Room

    @property
    def demand(self) -> dict[str, float]:
        """What a worker needs."""
        return demand_of(self._spec.scale)

    def shortage(self, workers: Sequence[Address]) -> str | None:
        """Return why these workers or stages do not fit now; None if they do."""
        placed = self._place(workers)
        return placed.reason if isinstance(placed, Shortage) else None

    def num_fitting(self, replicas: Sequence[tuple[Address, ...]]) -> int:
        """Return how many of these replicas, the first ones, fit now."""
        now = resources()
        for count in range(len(replicas), 0, -1):
            who = [address for replica in replicas[:count] for address in replica]
            if not isinstance(self._place(who, now), Shortage):
                return count
        return 0

    def _place(
        self, workers: Sequence[Address], found: tuple[Resources, Resources] | None = None
    ) -> list[str] | Shortage:
        free, total = found or resources()
        taken: dict[str, int] = {}
        for member in self.members.values():
            if member.node is not None and ROLES[member.name.role].room is Room.RESERVED:
                taken[member.node] = taken.get(member.node, 0) + 1
        near = {member.name.index: member.node for member in self.members.values() if member.name.role is Role.STAGE}
        wanted = Wanted(self.demand, self._spec.scale.placement, taken, near)
        placed = place_all(workers, wanted, free, total)
        if isinstance(placed, Shortage) and placed.is_lasting and grows():
            return place_all(workers, wanted, free)
        return placed

    def reserve(self, workers: Sequence[Address]) -> list[Reservation] | str:
        """Return one reserved place per worker, or say why not; all or none, so two jobs cannot hold each other up."""
        nodes = self._place(workers)
        if isinstance(nodes, Shortage):
            return nodes.reason
        groups = [
            placement_group(
                [self.demand],
                strategy="STRICT_PACK",
                name=self._label(address),
                lifetime="detached",
                bundle_label_selector=[{"ray.io/node-id": node}],
            )
            for address, node in zip(workers, nodes, strict=True)
        ]
        ready = [group.ready() for group in groups]
        done, _ = ray.wait(ready, num_returns=len(ready), timeout=_RESERVE_S)
        if len(done) == len(ready):
            return list(zip(nodes, groups, strict=True))
        for group in groups:
            remove_placement_group(group)
        return f"{len(done)} of {len(workers)} places could be reserved in {_RESERVE_S:.0f} s; other work took the room"

    # Making

    def launch(
        self, places: list[Reservation], workers: Iterable[Address], resume: str | None, elapsed_s: float
    ) -> None:
        """Start the coordinator, the shards and these workers."""
        self.link = None
        workers = sorted(workers)
        self.next_worker = max(self.next_worker, *(address.index + 1 for address in workers))
        self._base = msgspec.structs.replace(self._base, resume=resume, elapsed_s=elapsed_s)
        scale = self._spec.scale
        seats = seat_servers([node for node, _ in places], scale.shards, scale.shards_in, scale.replicas or 0)
        for address, (node, group), guests in zip(workers, places, seats.guests, strict=True):
            self._make((address, *guests), node, group)
        for server in servers_of(self._spec):
            if server.role is not Role.SHARD:
                self._make((server,), seats.coordinator)
        for shards, node in seats.shards:
            self._make_shards(shards, node)

    @property
    def num_backups(self) -> int:
        """How many follow each shard."""
        return self._spec.scale.replicas or 0

    def use(self, spec: JobSpec) -> None:
        """Make actors for this job from now on: the same, with what was left open worked out."""
        self._spec, self._base = spec, msgspec.structs.replace(self._base, spec=spec.model_dump_json())

    def stand_by(self, newcomer: Address, served_on: str | None) -> None:
        """Start a shard that may follow another, on another node than that one's if there is one."""
        self._base = msgspec.structs.replace(self._base, resume=None)
        self._make_shards((newcomer,), elsewhere(served_on, self._training()))

    def _make_shards(self, shards: tuple[Address, ...], node: str) -> None:
        """Start a process with shards, each for all stages."""
        self._make(tuple(found.at(stage) for found in shards for stage in range(self._spec.scale.stages)), node)

    def renew(self, name: Address, elapsed_s: float = 0.0) -> None:
        """Start an actor again that was lost, beside a worker: it held nothing, or asks for what it must know."""
        self.dismiss(name)
        self._base = msgspec.structs.replace(self._base, resume=None, elapsed_s=elapsed_s)
        self._make((name,), self._training()[0])

    def _training(self) -> list[str]:
        """Return the nodes of workers that are up, the first worker's first: others may be far from all of them."""
        up = [found for _, found in sorted(self.members.items()) if found.seen.life in (Life.STARTING, Life.ALIVE)]
        training = [found.node for found in up if found.node and ROLES[found.name.role].room is Room.RESERVED]
        training = [node for node in training if node not in self.draining] or training
        return training or [found.node for found in up if found.node] or [ray.get_runtime_context().get_node_id()]

    def node_of(self, address: Address) -> str | None:
        """Return the node of the actor that hosts a core."""
        return next((found.node for found in self.members.values() if address in found.addresses), None)

    def host_of(self, address: Address) -> ActorRecord | None:
        """Return the actor that hosts a core."""
        return next((found for found in self.members.values() if address in found.addresses), None)

    def add_replica(self) -> str | None:
        """Start one more worker, or all stages of one more pipeline; return why not, if not."""
        problem = self.add(*replica_of(self._spec, self.next_worker))
        self.next_worker += problem is None
        return problem

    def add(self, *newcomers: Address) -> str | None:
        """Start workers or stages, all or none; return why not, if not."""
        places = self.reserve(newcomers)
        if isinstance(places, str):
            return places
        self._base = msgspec.structs.replace(self._base, resume=None)
        for newcomer, place in zip(newcomers, places, strict=True):
            self._make((newcomer,), *place)
        return None

    def add_spare(self) -> str | None:
        """Start one more worker that stands by; return why not, if not."""
        newcomer = worker(self.next_worker)
        self._base, base = msgspec.structs.replace(self._base, is_spare=True), self._base
        try:
            problem = self.add(newcomer)
        finally:
            self._base = base
        if problem is None:
            self.members[newcomer].is_spare = True
            self.next_worker += 1
        return problem

    def _make(self, addresses: tuple[Address, ...], node: str, group: PlacementGroup | None = None) -> None:
        """Start an actor for these cores: in a room reserved for it, or beside the workers without CPUs of its own."""
        name, scale = addresses[0], self._spec.scale
        traits = ROLES[name.role]
        if traits.room is Room.RESERVED and group is not None:
            cpus, gpus = scale.cpus_per_worker, scale.gpus_per_worker
            seat: Any = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
        else:
            cpus, gpus = 0.0, 0.0
            seat = NodeAffinitySchedulingStrategy(node, soft=False)
        shell = found(traits.shell).options(
            name=self._label(name),
            namespace=NAMESPACE,
            lifetime="detached",
            max_restarts=0,
            num_cpus=cpus,
            num_gpus=gpus,
            runtime_env=self._envs.of(traits),
            scheduling_strategy=seat,
        )
        assignment = msgspec.structs.replace(self._base, addresses=addresses, cpus=scale.cpus_per_worker)
        self.members[name] = ActorRecord(addresses, shell.remote(assignment, self._controller), node, group)

    def _label(self, name: Address) -> str:
        return f"{self._job}:{name}:{self.life}"

    # Watching

    def poll(self, timeout_s: float, extra: list[Any]) -> list[Any]:
        """Wait until an actor or one of the `extra` calls answers; return those of `extra` that did."""
        calls = {call: member for member in self.members.values() for call in member.calls}
        waiting = [*calls, *extra]
        if not waiting:
            time.sleep(timeout_s)
            return []
        done, _ = ray.wait(waiting, num_returns=1, timeout=timeout_s)
        if done:
            done, _ = ray.wait(waiting, num_returns=len(waiting), timeout=0)
        for call in done:
            if call in calls:
                calls[call].answered(call)
        return [call for call in extra if call in done]

    def introduce(self) -> list[ActorRecord]:
        """Once every actor of a launch has said hello, choose the link and tell them of each other; later, tell the
        others of newcomers. Return who is new.
        """
        up = [member for member in self.members.values() if member.seen.life in (Life.STARTING, Life.ALIVE)]
        present = [member for member in up if not member.is_spare]
        if self.link is None and any(member.hello is None for member in present):
            return []
        present = [member for member in present if member.hello is not None]  # the others come when they say hello
        fresh = [member for member in present if not member.introduced]
        if not fresh:
            return []
        book = {address: member.contact for member in present for address in member.addresses}
        if self.link is None:
            chosen = choose_link(self._spec.transport.kind, present, book)
            if chosen is None:
                return []
            self.link, self.link_reason = chosen
        elif self.link == "direct":
            reached = check_newcomers(fresh, book)
            present = [member for member in present if member not in fresh or member in reached]
            fresh = reached
            if not fresh:
                return []
            book = {address: member.contact for member in present for address in member.addresses}
        calls = [member.actor.introduce.remote(self.link, book) for member in present]
        ray.wait(calls, num_returns=len(calls), timeout=_MET_S)
        for member in fresh:
            member.introduced = True
            member.seen = ActorSeen(Life.ALIVE) if member.seen.life is Life.STARTING else member.seen
        return fresh

    def introduce_again(self, member: ActorRecord) -> None:
        """Tell an actor that was frozen of whoever came meanwhile; whatever it waits for, it asks for again."""
        present = [other for other in self.members.values() if other.seen.life in (Life.STARTING, Life.ALIVE)]
        book = {address: other.contact for other in present if other.introduced for address in other.addresses}
        member.actor.introduce.remote(self.link, book)

    # Ending

    def dismiss(self, name: Address) -> None:
        """Clear a member away and tell the others."""
        member = self.members.pop(name, None)
        if member is None:
            return
        sweep_after([member], list(self.members.values()))
        clear([member])
        for other in self.members.values():
            if other.introduced:
                other.actor.introduce.remote(self.link, {}, member.addresses)

    def dismiss_all(self) -> None:
        """Clear every actor away."""
        members, self.members = list(self.members.values()), {}
        sweep_after(members, members)
        clear(members)

    def adopt(self) -> None:
        """Take over actors that are already there: the controller itself was restarted."""
        groups = {entry["name"]: entry for entry in placement_group_table().values()}
        kept: set[str] = set()
        for entry in ray.util.list_named_actors(all_namespaces=True):
            job, _, rest = entry["name"].partition(":")
            if entry["namespace"] != NAMESPACE or job != self._job or rest == CONTROLLER:
                continue
            text, _, life = rest.rpartition(":")
            name, group = Address.parse(text), None
            kept.add(entry["name"])
            try:
                actor = ray.get_actor(entry["name"], namespace=NAMESPACE)
                group = get_placement_group(entry["name"]) if entry["name"] in groups else None
            except ValueError:
                continue  # it has just gone; `mark_missing` notices
            member = ActorRecord((name,), actor, None, group)
            try:
                member.hello = ray.get(actor.hello.remote(), timeout=_MET_S)
            except RayError:
                continue  # its `wait` tells how it is
            finally:
                self.members[name] = member
            member.addresses, member.introduced = member.hello.addresses, member.hello.link is not None
            member.node = member.hello.node_id
            self.life, self.link = max(self.life, int(life)), member.hello.link or self.link
            if member.introduced:
                member.seen = ActorSeen(Life.ALIVE)
            elif name.role is Role.WORKER and self._spec.scale.spares:
                member.stand_by()
        for label, entry in groups.items():
            if label.startswith(f"{self._job}:") and label not in kept and entry["state"] != "REMOVED":
                remove_placement_group(get_placement_group(label))

    def mark_missing(self, members: Iterable[Address]) -> None:
        """Count as dead whatever should be there and was not found."""
        members = list(members)
        present = {address for member in self.members.values() for address in member.addresses}
        stages = range(self._spec.scale.stages)
        for address in (*servers_of(self._spec), *(who.at(stage) for who in members for stage in stages)):
            if address not in present:
                self.members[address] = ActorRecord.lost(address)
        reserved = [address for address in (*self.members, *members) if ROLES[address.role].room is Room.RESERVED]
        self.next_worker = max([self.next_worker, *(address.index + 1 for address in reserved)])


def clear_leftovers(job: str) -> None:
    """End whatever actors and free whatever room a job without a controller has left on this cluster."""
    for entry in ray.util.list_named_actors(all_namespaces=True):
        if entry["namespace"] == NAMESPACE and entry["name"].startswith(f"{job}:"):
            with contextlib.suppress(ValueError):
                ray.kill(ray.get_actor(entry["name"], namespace=NAMESPACE), no_restart=True)
    for entry in placement_group_table().values():
        if entry["name"].startswith(f"{job}:") and entry["state"] != "REMOVED":
            with contextlib.suppress(ValueError):
                remove_placement_group(get_placement_group(entry["name"]))

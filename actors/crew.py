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

from actors.coordinator import CoordinatorActor
from actors.core_actor import Assignment
from actors.meeting import check_newcomers, choose_link
from actors.member import Member, clear, sweep_after
from actors.packages import Environments
from actors.shard import ShardActor
from actors.worker import WorkerActor
from raysync.control.placing import Shortage, place, seat_servers
from raysync.control.reconcile import ActorSeen, Life
from raysync.engine import messages as m
from raysync.spec import JobSpec

Place = tuple[str, PlacementGroup]
"""A node and the room reserved on it."""

NAMESPACE = "raysync"
CONTROLLER = "controller"
_RESERVE_S = 5.0
_INTRODUCE_S = 60.0


class Crew:
    """All members of a job."""

    def __init__(self, job: str, spec: JobSpec, base: Assignment, envs: Environments, controller: Any) -> None:
        self._job, self._spec, self._base, self._envs = job, spec, base, envs
        self._controller = controller
        self.members: dict[str, Member] = {}
        """By name: the address of the first core."""
        self.next_worker = 0
        self.life = 0
        """How often the job has been started; part of the actors' names."""
        self.link: str | None = None
        self.link_reason = ""

    # Room

    @property
    def demand(self) -> dict[str, float]:
        """What a worker needs."""
        scale = self._spec.scale
        return {"CPU": scale.cpus_per_worker, **({"GPU": scale.gpus_per_worker} if scale.gpus_per_worker else {})}

    def shortage(self, count: int) -> str | None:
        """Return why `count` more workers do not fit now; None if they do."""
        placed = self._place(count)
        return placed.reason if isinstance(placed, Shortage) else None

    def _place(self, count: int) -> list[str] | Shortage:
        from ray._private.state import available_resources_per_node

        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        free = {node: found for node, found in available_resources_per_node().items() if node in alive}
        taken: dict[str, int] = {}
        for member in self.members.values():
            if member.node is not None and member.name.startswith("worker/"):
                taken[member.node] = taken.get(member.node, 0) + 1
        return place(count, self.demand, free, self._spec.scale.placement, taken)

    def reserve(self, workers: Sequence[int]) -> list[Place] | str:
        """Return one reserved place per worker, or say why not; all or none, so two jobs cannot hold each other up."""
        nodes = self._place(len(workers))
        if isinstance(nodes, Shortage):
            return nodes.reason
        groups = [
            placement_group(
                [self.demand],
                strategy="STRICT_PACK",
                name=self._label(m.worker_address(worker)),
                lifetime="detached",
                bundle_label_selector=[{"ray.io/node-id": node}],
            )
            for worker, node in zip(workers, nodes, strict=True)
        ]
        ready = [group.ready() for group in groups]
        done, _ = ray.wait(ready, num_returns=len(ready), timeout=_RESERVE_S)
        if len(done) == len(ready):
            return list(zip(nodes, groups, strict=True))
        for group in groups:
            remove_placement_group(group)
        return f"{len(done)} of {len(workers)} places could be reserved in {_RESERVE_S:.0f} s; somebody else was faster"

    # Making

    def launch(self, places: list[Place], workers: Iterable[int], resume: str | None, elapsed_s: float) -> None:
        """Start the coordinator, the shards and these workers."""
        self.link = None
        workers = sorted(workers)
        self.next_worker = max(self.next_worker, *(worker + 1 for worker in workers))
        self._base = msgspec.structs.replace(self._base, resume=resume, elapsed_s=elapsed_s)
        scale = self._spec.scale
        seats = seat_servers([node for node, _ in places], scale.shards, scale.shards_in)
        for worker, (node, group), guests in zip(workers, places, seats.guests, strict=True):
            self._make_worker(worker, node, group, tuple(m.shard_address(shard) for shard in guests))
        self._make_server(CoordinatorActor, (m.COORDINATOR,), seats.coordinator)
        for shard, node in seats.shards.items():
            self._make_server(ShardActor, (m.shard_address(shard),), node)

    def add_worker(self) -> str | None:
        """Start one more worker; return why not, if not."""
        worker = self.next_worker
        places = self.reserve([worker])
        if isinstance(places, str):
            return places
        self.next_worker += 1
        self._base = msgspec.structs.replace(self._base, resume=None)
        self._make_worker(worker, *places[0], ())
        return None

    def _make_worker(self, worker: int, node: str, group: PlacementGroup, shards: tuple[str, ...]) -> None:
        addresses = (m.worker_address(worker), *shards)
        actor = self._options(
            WorkerActor,
            addresses[0],
            num_cpus=self._spec.scale.cpus_per_worker,
            num_gpus=self._spec.scale.gpus_per_worker,
            runtime_env=self._envs.workers,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0),
        ).remote(self._assignment(addresses, self._spec.scale.cpus_per_worker), self._controller)
        self.members[addresses[0]] = Member(addresses, actor, node, group)

    def _make_server(self, kind: Any, addresses: tuple[str, ...], node: str | None) -> None:
        strategy = NodeAffinitySchedulingStrategy(node, soft=False) if node is not None else "DEFAULT"
        actor = self._options(
            kind, addresses[0], num_cpus=0, runtime_env=self._envs.servers, scheduling_strategy=strategy
        ).remote(self._assignment(addresses, 0.0), self._controller)
        self.members[addresses[0]] = Member(addresses, actor, node, None)

    def _options(self, kind: Any, name: str, **options: Any) -> Any:
        return kind.options(
            name=self._label(name),
            namespace=NAMESPACE,
            lifetime="detached",
            max_restarts=0,
            **options,
        )

    def _label(self, name: str) -> str:
        return f"{self._job}:{name}:{self.life}"

    def _assignment(self, addresses: tuple[str, ...], cpus: float) -> Assignment:
        return msgspec.structs.replace(self._base, addresses=addresses, cpus=cpus)

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

    def introduce(self) -> list[Member]:
        """Once everybody of a launch has said hello, choose the link and tell them of each other; later, tell the
        others of newcomers. Return who is new.
        """
        present = [member for member in self.members.values() if member.seen.life in (Life.STARTING, Life.ALIVE)]
        fresh = [member for member in present if not member.introduced]
        if not fresh or any(member.hello is None for member in (fresh if self.link else present)):
            return []
        book = {address: member.contact for member in present for address in member.addresses}
        if self.link is None:
            chosen = choose_link(self._spec.transport, present, book)
            if chosen is None:
                return []
            self.link, self.link_reason = chosen
        elif self.link == "direct":
            check_newcomers(fresh, book)
        calls = [member.actor.introduce.remote(self.link, book) for member in present]
        ray.wait(calls, num_returns=len(calls), timeout=_INTRODUCE_S)
        for member in fresh:
            member.introduced = True
            member.seen = ActorSeen(Life.ALIVE) if member.seen.life is Life.STARTING else member.seen
        return fresh

    # Ending

    def dismiss(self, name: str) -> None:
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
        """Clear everybody away."""
        members, self.members = list(self.members.values()), {}
        sweep_after(members, members)
        clear(members)

    def adopt(self) -> None:
        """Take over actors that are already there: the controller itself was restarted."""
        groups = {entry["name"]: entry for entry in placement_group_table().values()}
        for entry in ray.util.list_named_actors(all_namespaces=True):
            job, _, rest = entry["name"].partition(":")
            if entry["namespace"] != NAMESPACE or job != self._job or rest == CONTROLLER:
                continue
            name, _, life = rest.rpartition(":")
            group = None
            try:
                actor = ray.get_actor(entry["name"], namespace=NAMESPACE)
                group = get_placement_group(entry["name"]) if entry["name"] in groups else None
            except ValueError:
                continue  # it has just gone; `mourn` notices
            member = Member((name,), actor, None, group)
            try:
                member.hello = ray.get(actor.hello.remote(), timeout=_INTRODUCE_S)
            except RayError:
                continue  # its `wait` tells how it is
            finally:
                self.members[name] = member
            member.addresses, member.introduced = member.hello.addresses, member.hello.link is not None
            member.node = member.hello.node_id
            self.life, self.link = max(self.life, int(life)), member.hello.link or self.link
            if member.introduced:
                member.seen = ActorSeen(Life.ALIVE)
        kept = {self._label(name) for name in self.members}
        for label, entry in groups.items():
            if label.startswith(f"{self._job}:") and label not in kept and entry["state"] != "REMOVED":
                remove_placement_group(get_placement_group(label))

    def mourn(self, members: Iterable[int]) -> None:
        """Count as dead whoever should be there and was not found."""
        present = {address for member in self.members.values() for address in member.addresses}
        servers = (m.COORDINATOR, *map(m.shard_address, range(self._spec.scale.shards)))
        for address in (*servers, *map(m.worker_address, members)):
            if address not in present:
                self.members[address] = Member.lost(address)
        workers = [int(name.removeprefix("worker/")) for name in self.members if name.startswith("worker/")]
        self.next_worker = max([self.next_worker, *(worker + 1 for worker in workers), *(w + 1 for w in members)])


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

"""The actors of one job and the room they take: made, introduced, watched and cleared away. Nothing is decided here."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util.placement_group import (
    PlacementGroup,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from actors.coordinator import CoordinatorActor
from actors.core_actor import Assignment, Hello, Outcome
from actors.link.base import Contact
from actors.link.direct import sweep
from actors.packages import Environments
from actors.shard import ShardActor
from actors.worker import WorkerActor
from raysync.control.placing import Shortage, place
from raysync.control.reconcile import ActorSeen, Life
from raysync.engine import messages as m
from raysync.spec import JobSpec

Place = tuple[str, PlacementGroup]
"""A node and the room reserved on it."""

NAMESPACE = "raysync"
CONTROLLER = "controller"
_RESERVE_S = 5.0
_PROBE_S = 5.0
_INTRODUCE_S = 60.0
_HALT_S = 12.0


class Member:
    """One actor, what it said of itself, and how it is."""

    def __init__(self, addresses: tuple[str, ...], actor: Any, node: str | None, group: PlacementGroup | None) -> None:
        self.addresses, self.actor, self.node, self.group = addresses, actor, node, group
        self.hello: Hello | None = None
        self.introduced = False
        self.calls: dict[Any, str] = {actor.hello.remote(): "hello", actor.wait.remote(): "wait"}
        """Answers still to come."""
        self.seen = ActorSeen(Life.STARTING)

    @classmethod
    def lost(cls, address: str) -> Member:
        """Return a member that was gone before anybody could watch it."""
        member = cls.__new__(cls)
        member.addresses, member.actor, member.node, member.group = (address,), None, None, None
        member.hello, member.introduced, member.calls = None, False, {}
        member.seen = ActorSeen(Life.DEAD, "it was gone when the controller came back")
        return member

    @property
    def name(self) -> str:
        """The address of its first core."""
        return self.addresses[0]

    @property
    def contact(self) -> Contact:
        """How it is reached."""
        return Contact(self.actor, self.hello.endpoint if self.hello is not None else None)

    def answered(self, call: Any) -> None:
        """Take in an answer, or the way it failed."""
        kind = self.calls.pop(call)
        try:
            answer = ray.get(call)
        except RayTaskError as error:
            self.seen = ActorSeen(Life.FAILED, str(error.cause) if error.cause is not None else str(error))
        except RayActorError as error:
            self.seen = _died(error)
        except RayError as error:  # a runtime environment that cannot be made, for one
            self.seen = ActorSeen(Life.FAILED, str(error))
        else:
            if kind == "hello":
                self.hello = answer
            else:
                self.seen = _ended(answer)


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
        scale, nodes = self._spec.scale, [node for node, _ in places]
        in_workers = scale.shards_in == "workers"
        guests = {
            worker: tuple(m.shard_address(s) for s in range(scale.shards) if in_workers and s % len(workers) == index)
            for index, worker in enumerate(workers)
        }
        for worker, (node, group) in zip(workers, places, strict=True):
            self._make_worker(worker, node, group, guests[worker])
        self._make_server(CoordinatorActor, (m.COORDINATOR,), nodes[0])  # never on a node that trains nothing
        for shard in range(0 if in_workers else scale.shards):
            # Beside the workers, in turn: what a shard and a worker of one node say to each other stays there.
            self._make_server(ShardActor, (m.shard_address(shard),), nodes[shard % len(nodes)])

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
            chosen = self._choose_link(present, book)
            if chosen is None:
                return []
            self.link, self.link_reason = chosen
        elif self.link == "direct":
            self._check_newcomers(fresh, book)
        calls = [member.actor.introduce.remote(self.link, book) for member in present]
        ray.wait(calls, num_returns=len(calls), timeout=_INTRODUCE_S)
        for member in fresh:
            member.introduced = True
            member.seen = ActorSeen(Life.ALIVE) if member.seen.life is Life.STARTING else member.seen
        return fresh

    def _choose_link(self, present: list[Member], book: dict[str, Contact]) -> tuple[str, str] | None:
        wish = self._spec.transport
        if wish == "ray":
            return "ray", "the job asks for it"
        without = [found for found in present if found.hello is not None and found.hello.endpoint is None]
        if without and without[0].hello is not None:
            problem = f"{without[0].name} has no direct link: {without[0].hello.endpoint_problem}"
        else:
            calls = [member.actor.probe.remote(_peers(member, book), _PROBE_S) for member in present]
            try:
                missing = [
                    f"{member.name} cannot reach {unreached[0]}"
                    for member, unreached in zip(present, ray.get(calls, timeout=_PROBE_S + 20), strict=True)
                    if unreached
                ]
            except RayActorError:
                return None  # somebody has just died: look again
            except (GetTimeoutError, RayError) as error:
                missing = [f"the probe failed: {type(error).__name__}"]
            if not missing:
                return "direct", "the job asks for it" if wish == "direct" else "a probe reached everybody"
            problem = missing[0]
        if wish == "direct":
            for member in present:
                member.seen = ActorSeen(Life.FAILED, f"transport: direct cannot be had: {problem}; set transport: auto")
            return "direct", problem
        return "ray", f"direct does not work: {problem}"

    def _check_newcomers(self, fresh: list[Member], book: dict[str, Contact]) -> None:
        for member in fresh:
            try:
                unreached = ray.get(member.actor.probe.remote(_peers(member, book), _PROBE_S), timeout=_PROBE_S + 20)
            except RayActorError:
                continue  # its `wait` tells of its death
            except (GetTimeoutError, RayError) as error:
                unreached = [f"anybody ({type(error).__name__})"]
            if unreached:
                member.seen = ActorSeen(Life.FAILED, f"its direct link cannot reach {unreached[0]}")

    # Ending

    def dismiss(self, name: str) -> None:
        """Clear a member away and tell the others."""
        member = self.members.pop(name, None)
        if member is None:
            return
        _sweep([member], list(self.members.values()))
        _clear([member])
        for other in self.members.values():
            if other.introduced:
                other.actor.introduce.remote(self.link, {}, member.addresses)

    def dismiss_all(self) -> None:
        """Clear everybody away."""
        members, self.members = list(self.members.values()), {}
        _sweep(members, members)
        _clear(members)

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


def _sweep(members: list[Member], neighbours: list[Member]) -> None:
    """Have what killed members left on their nodes removed by whoever lives there."""
    here = ray.get_runtime_context().get_node_id()
    for member in members:
        if member.seen.life is not Life.DEAD or member.hello is None or member.hello.endpoint is None:
            continue
        if member.hello.node_id == here:
            sweep(member.hello.endpoint)
            continue
        for other in neighbours:
            if other.seen.life is Life.ALIVE and other.hello and other.hello.node_id == member.hello.node_id:
                other.actor.sweep.remote(member.hello.endpoint)
                break


def _clear(members: list[Member]) -> None:
    alive = [member for member in members if member.seen.life is not Life.DEAD]
    halts = [member.actor.halt.remote() for member in alive]
    if halts:
        ray.wait(halts, num_returns=len(halts), timeout=_HALT_S)
    for member in members:
        if member.actor is not None:
            ray.kill(member.actor, no_restart=True)
        if member.group is not None:
            remove_placement_group(member.group)


def _peers(member: Member, book: dict[str, Contact]) -> dict[str, Contact]:
    """Return whom a member talks to: workers to servers and servers to everybody."""
    kinds = ("shard/", m.COORDINATOR) if member.name.startswith("worker/") else ("worker/", "shard/", m.COORDINATOR)
    if any(address.startswith("shard/") for address in member.addresses):
        kinds = ("worker/", "shard/", m.COORDINATOR)
    return {
        address: contact
        for address, contact in book.items()
        if address.startswith(kinds) and address not in member.addresses
    }


def _died(error: RayActorError) -> ActorSeen:
    first = next((line for line in str(error).splitlines() if "died" in line or "exit" in line.lower()), str(error))
    if "ModuleNotFoundError" in str(error) or "creation task" in str(error):
        return ActorSeen(Life.FAILED, str(error))
    return ActorSeen(Life.DEAD, first.strip()[:300])


def _ended(outcome: Outcome) -> ActorSeen:
    if outcome.kind == "failed":
        return ActorSeen(Life.FAILED, outcome.traceback or "")
    return ActorSeen(Life.GONE)

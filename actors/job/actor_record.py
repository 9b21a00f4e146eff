"""One actor of a job: what it said of itself, how it is, and how it is cleared away."""

from __future__ import annotations

from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, remove_placement_group

from actors.link.base import Contact
from actors.link.direct import sweep
from actors.shell.core_actor import Hello, Outcome
from raysync.address import Address
from raysync.control.budgets import Cause
from raysync.control.pulse import Pulse
from raysync.control.reconcile import ActorSeen, Life

_HALT_S = 12.0
_NODE_GONE = "its node has died"
"""How Ray says that a machine is gone, and not only the process."""


class ActorRecord:
    """One actor, what it said of itself, and how it is."""

    def __init__(
        self, addresses: tuple[Address, ...], actor: Any, node: str | None, group: PlacementGroup | None
    ) -> None:
        self.addresses, self.actor, self.node, self.group = addresses, actor, node, group
        self.hello: Hello | None = None
        self.introduced = False
        self.calls: dict[Any, str] = {actor.hello.remote(): "hello", actor.wait.remote(): "wait"}
        """Answers still to come."""
        self.seen = ActorSeen(Life.STARTING)
        self.pulse = Pulse()
        self.frozen_s: float | None = None
        """When it was found not to answer."""
        self.is_spare = False
        """It stands by, and is introduced when it is called in."""

    @classmethod
    def lost(cls, address: Address) -> ActorRecord:
        """Return a member that was gone before it could be watched."""
        member = cls.__new__(cls)
        member.addresses, member.actor, member.node, member.group = (address,), None, None, None
        member.hello, member.introduced, member.calls = None, False, {}
        member.pulse, member.frozen_s, member.is_spare = Pulse(), None, False
        member.seen = ActorSeen(Life.DEAD, "it was gone when the controller came back")
        return member

    @property
    def name(self) -> Address:
        """The address of its first core."""
        return self.addresses[0]

    @property
    def contact(self) -> Contact:
        """How it is reached."""
        return Contact(self.actor, self.hello.endpoint if self.hello is not None else None)

    def stand_by(self) -> None:
        """Count as a worker that is up and waits to be called in."""
        self.is_spare, self.seen = True, ActorSeen(Life.SPARE)

    def call_in(self) -> None:
        """Count as a worker that starts."""
        self.is_spare = False
        self.seen = ActorSeen(Life.STARTING) if self.seen.life is Life.SPARE else self.seen

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
                self.stand_by() if self.is_spare else None
            else:
                self.seen = _ended(answer)


def clear(members: list[ActorRecord]) -> None:
    """End actors and free their room; one that does not end within the bound is killed, and what it leaves swept."""
    halts = {member.actor.halt.remote(): member for member in members if member.seen.life is not Life.DEAD}
    late: list[Any] = []
    if halts:
        _, late = ray.wait([*halts], num_returns=len(halts), timeout=_HALT_S)
    for member in members:
        if member.actor is not None:
            ray.kill(member.actor, no_restart=True)
        if member.group is not None:
            remove_placement_group(member.group)
    for call in late:
        _sweep(halts[call], [])


def sweep_after(members: list[ActorRecord], neighbours: list[ActorRecord]) -> None:
    """Have what killed members left on their nodes removed by whichever actor lives there."""
    for member in members:
        if member.seen.life is Life.DEAD:
            _sweep(member, neighbours)


def _sweep(member: ActorRecord, neighbours: list[ActorRecord]) -> None:
    if member.hello is None or member.hello.endpoint is None:
        return
    if member.hello.node_id == ray.get_runtime_context().get_node_id():
        sweep(member.hello.endpoint)
        return
    for other in neighbours:
        if other.seen.life is Life.ALIVE and other.hello and other.hello.node_id == member.hello.node_id:
            other.actor.sweep.remote(member.hello.endpoint)
            break


def _died(error: RayActorError) -> ActorSeen:
    first = next((line for line in str(error).splitlines() if "died" in line or "exit" in line.lower()), str(error))
    if "ModuleNotFoundError" in str(error) or "creation task" in str(error):
        return ActorSeen(Life.FAILED, str(error))
    is_of_machine = error.preempted or _NODE_GONE in str(error)
    return ActorSeen(Life.DEAD, first.strip()[:300], Cause.MACHINE if is_of_machine else None)


def _ended(outcome: Outcome) -> ActorSeen:
    if outcome.kind == "failed":
        return ActorSeen(Life.FAILED, outcome.failure or "", outcome.cause)
    return ActorSeen(Life.GONE)

"""How the actors of a job come to know each other: which link reaches all of them, found out by trying."""

from __future__ import annotations

from collections.abc import Mapping

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from actors.job.actor_record import ActorRecord
from actors.link.base import Contact
from raysync.address import Address
from raysync.control.reconcile import ActorSeen, Life
from raysync.control.roles import ROLES

_PROBE_S = 5.0


def choose_link(wish: str, present: list[ActorRecord], book: Mapping[Address, Contact]) -> tuple[str, str] | None:
    """Return the link all actors will use and why; None if one died meanwhile and it is to be asked again.

    Where a wish cannot be had, all of them have failed for that reason.
    """
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
            return None  # one has just died: look again
        except (GetTimeoutError, RayError) as error:
            missing = [f"the probe failed: {type(error).__name__}"]
        if not missing:
            return "direct", "the job asks for it" if wish == "direct" else "a probe reached every actor"
        problem = missing[0]
    if wish == "direct":
        for member in present:
            member.seen = ActorSeen(Life.FAILED, f"transport: direct cannot be had: {problem}; set transport: auto")
        return "direct", problem
    return "ray", f"direct does not work: {problem}"


def check_newcomers(fresh: list[ActorRecord], book: Mapping[Address, Contact]) -> None:
    """Let newcomers that cannot reach every actor over the direct link fail for that reason."""
    for member in fresh:
        try:
            unreached = ray.get(member.actor.probe.remote(_peers(member, book), _PROBE_S), timeout=_PROBE_S + 20)
        except RayActorError:
            continue  # its `wait` tells of its death
        except (GetTimeoutError, RayError) as error:
            unreached = [f"any other ({type(error).__name__})"]
        if unreached:
            member.seen = ActorSeen(Life.FAILED, f"its direct link cannot reach {unreached[0]}")


def _peers(member: ActorRecord, book: Mapping[Address, Contact]) -> dict[Address, Contact]:
    """Return whom the cores of a member talk to, by the table of roles."""
    roles = frozenset().union(*(ROLES[address.role].talks_to for address in member.addresses))
    return {
        address: contact
        for address, contact in book.items()
        if address.role in roles and address not in member.addresses
    }

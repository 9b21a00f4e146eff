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
_NEWCOMER_S = 1.0
"""The same for newcomers, for whom others wait."""


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


def check_newcomers(fresh: list[ActorRecord], book: Mapping[Address, Contact]) -> list[ActorRecord]:
    """Return the newcomers that reach every actor over the direct link. One that does not reach an actor which answers
    has failed for that reason; where that one is silent too, it is the one to blame, and the newcomer waits.
    """
    calls = [member.actor.probe.remote(_peers(member, book), _NEWCOMER_S) for member in fresh]
    reached = []
    for member, call in zip(fresh, calls, strict=True):
        try:
            unreached: list[Address] = ray.get(call, timeout=_NEWCOMER_S + 2)
        except RayError:
            continue  # its `wait` tells of its death; or it is slow
        if not unreached:
            reached.append(member)
        elif _answers(book[unreached[0]]) and not _reaches(member, unreached[0], book):
            member.seen = ActorSeen(Life.FAILED, f"its direct link cannot reach {unreached[0]}")
    return reached


def _reaches(member: ActorRecord, peer: Address, book: Mapping[Address, Contact]) -> bool:
    """Try once more, and longer: a peer may only have been busy."""
    try:
        return not ray.get(member.actor.probe.remote({peer: book[peer]}, _PROBE_S), timeout=_PROBE_S + 2)
    except RayError:
        return True


def _answers(contact: Contact) -> bool:
    try:
        ray.get(contact.actor.ping.remote(), timeout=_NEWCOMER_S)
    except RayError:
        return False
    return True


def _peers(member: ActorRecord, book: Mapping[Address, Contact]) -> dict[Address, Contact]:
    """Return whom the cores of a member talk to, by the table of roles."""
    roles = frozenset().union(*(ROLES[address.role].talks_to for address in member.addresses))
    return {
        address: contact
        for address, contact in book.items()
        if address.role in roles and address not in member.addresses
    }

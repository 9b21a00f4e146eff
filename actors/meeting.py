"""How the actors of a job come to know each other: which link reaches everybody, found out by trying."""

from __future__ import annotations

from collections.abc import Mapping

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from actors.link.base import Contact
from actors.member import Member
from raysync.control.reconcile import ActorSeen, Life
from raysync.engine import messages as m

_PROBE_S = 5.0


def choose_link(wish: str, present: list[Member], book: Mapping[str, Contact]) -> tuple[str, str] | None:
    """Return the link everybody will use and why; None if somebody died meanwhile and it is to be asked again.

    Where a wish cannot be had, everybody has failed for that reason.
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


def check_newcomers(fresh: list[Member], book: Mapping[str, Contact]) -> None:
    """Let newcomers who cannot reach everybody over the direct link fail for that reason."""
    for member in fresh:
        try:
            unreached = ray.get(member.actor.probe.remote(_peers(member, book), _PROBE_S), timeout=_PROBE_S + 20)
        except RayActorError:
            continue  # its `wait` tells of its death
        except (GetTimeoutError, RayError) as error:
            unreached = [f"anybody ({type(error).__name__})"]
        if unreached:
            member.seen = ActorSeen(Life.FAILED, f"its direct link cannot reach {unreached[0]}")


def _peers(member: Member, book: Mapping[str, Contact]) -> dict[str, Contact]:
    """Return whom a member talks to: workers to servers and servers to everybody."""
    kinds = ("shard/", m.COORDINATOR) if member.name.startswith("worker/") else ("worker/", "shard/", m.COORDINATOR)
    if any(address.startswith("shard/") for address in member.addresses):
        kinds = ("worker/", "shard/", m.COORDINATOR)
    return {
        address: contact
        for address, contact in book.items()
        if address.startswith(kinds) and address not in member.addresses
    }

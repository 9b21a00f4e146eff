"""What a job really runs with, beside what it asked for: link, codecs, devices, threads, as its actors tell."""

from __future__ import annotations

import contextlib
from typing import Any

import ray
from ray.exceptions import RayError

from actors.job.actor_group import ActorGroup
from raysync.address import Address
from raysync.control.reconcile import Life
from raysync.ports import ActorStatus
from raysync.spec import JobSpec

_LOOK_S = 0.2


class Observed:
    """Asks the actors of a group, and keeps what they said last."""

    def __init__(self, spec: JobSpec, group: ActorGroup) -> None:
        self._spec, self._group = spec, group
        self._told: dict[Address, dict[str, Any]] = {}

    def look(self) -> None:
        """Ask all actors that can answer."""
        calls = {
            name: member.actor.facts.remote()
            for name, member in self._group.members.items()
            if member.introduced and member.seen.life in (Life.ALIVE, Life.GONE)
        }
        if not calls:
            return
        ready, _ = ray.wait(list(calls.values()), num_returns=len(calls), timeout=_LOOK_S)
        for name, call in calls.items():
            if call in ready:
                with contextlib.suppress(RayError):
                    self._told[name] = ray.get(call)

    def of_actors(self) -> dict[str, ActorStatus]:
        """Return where every actor is, how it is, and what it said."""
        return {
            str(name): ActorStatus(
                life=member.seen.life,
                node=member.hello.node if member.hello else None,
                node_id=member.hello.node_id if member.hello else None,
                pid=member.hello.pid if member.hello else None,
                facts=self._told.get(name, {}),
            )
            for name, member in sorted(self._group.members.items())
        }

    def of_job(self) -> dict[str, Any]:
        """Return what the whole job runs with; of actors that are gone, what they said last."""
        compression = self._spec.compression
        told = {str(name): facts for name, facts in self._told.items()}
        return {
            "link": self._group.link,
            "link_reason": self._group.link_reason,
            "push": compression.push.kind,
            "pull": compression.pull.kind,
            "error_feedback": compression.error_feedback,
            "decides_ahead": self._spec.decision_lead > 0,
            "shards_in": self._spec.scale.shards_in,
            "backups": self._group.num_backups,
            "devices": sorted({facts["device"] for facts in told.values() if "device" in facts}),
            "actors": told,
        }

"""What a job really runs with, beside what it asked for: link, codecs, devices, threads, as its actors tell."""

from __future__ import annotations

import contextlib
from typing import Any

import ray
from ray.exceptions import RayError

from actors.crew import Crew
from raysync.control.reconcile import Life
from raysync.spec import JobSpec

_LOOK_S = 1.0


class Facts:
    """Asks the actors of a crew, and keeps what they said last."""

    def __init__(self, spec: JobSpec, crew: Crew) -> None:
        self._spec, self._crew = spec, crew
        self._told: dict[str, dict[str, Any]] = {}

    def look(self) -> None:
        """Ask everybody who can answer."""
        calls = {
            name: member.actor.facts.remote()
            for name, member in self._crew.members.items()
            if member.introduced and member.seen.life in (Life.ALIVE, Life.GONE)
        }
        if not calls:
            return
        ready, _ = ray.wait(list(calls.values()), num_returns=len(calls), timeout=_LOOK_S)
        for name, call in calls.items():
            if call in ready:
                with contextlib.suppress(RayError):
                    self._told[name] = ray.get(call)

    def of_actors(self) -> dict[str, dict[str, Any]]:
        """Return where every actor is, how it is, and what it said."""
        return {
            name: {
                "node": member.hello.node if member.hello else None,
                "node_id": member.hello.node_id if member.hello else None,
                "pid": member.hello.pid if member.hello else None,
                "life": member.seen.life.value,
                **self._told.get(name, {}),
            }
            for name, member in sorted(self._crew.members.items())
        }

    def of_job(self) -> dict[str, Any]:
        """Return what the whole job runs with; of actors that are gone, what they said last."""
        strategy, compression, told = self._spec.strategy, self._spec.compression, dict(self._told)
        return {
            "link": self._crew.link,
            "link_reason": self._crew.link_reason,
            "push": compression.push.kind,
            "pull": compression.pull.kind,
            "error_feedback": compression.error_feedback,
            "decides_ahead": strategy.decides_ahead,
            "shards_in": self._spec.scale.shards_in,
            "devices": sorted({facts["device"] for facts in told.values() if "device" in facts}),
            "actors": told,
        }

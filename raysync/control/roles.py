"""The table of roles: how each is built, where it may sit, whom it talks to, and what its death means.

A new role is its core, its shell, and one row here.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple

from raysync.address import Role


class Room(StrEnum):
    """Where an actor of a role may sit."""

    RESERVED = "reserved"
    """on CPUs and GPUs of its own, as `scale` says, with the user's code"""
    BESIDE = "beside"
    """on a node that trains, without CPUs of its own"""


class Death(StrEnum):
    """What the death of an actor means for its job."""

    REPLACE = "replace"
    """another one takes its place; the rest train on"""
    RECOVER = "recover"
    """all go back to the last checkpoint"""


class Traits(NamedTuple):
    """One role."""

    core: str
    """The class that does the work, `module:name`."""
    shell: str
    """The Ray actor that hosts it, likewise; this package imports none."""
    room: Room
    talks_to: frozenset[Role]
    death: Death


_EVERY_ROLE = frozenset(Role)
_SERVERS = frozenset({Role.COORDINATOR, Role.SHARD})

ROLES: Mapping[Role, Traits] = MappingProxyType(
    {
        Role.COORDINATOR: Traits(
            "raysync.engine.coordinator:Coordinator",
            "actors.shell.coordinator:CoordinatorActor",
            Room.BESIDE,
            _EVERY_ROLE,
            Death.RECOVER,
        ),
        Role.SHARD: Traits(
            "raysync.engine.server.shard:Shard",
            "actors.shell.shard:ShardActor",
            Room.BESIDE,
            _EVERY_ROLE,
            Death.RECOVER,
        ),
        Role.WORKER: Traits(
            "raysync.engine.worker:Worker", "actors.shell.worker:WorkerActor", Room.RESERVED, _SERVERS, Death.REPLACE
        ),
    }
)


def found(path: str) -> Any:
    """Return the class a row names."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)

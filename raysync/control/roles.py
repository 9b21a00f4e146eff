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
    """on CPUs and GPUs of its own, as `scale` says"""
    BESIDE = "beside"
    """on a node that trains, without CPUs of its own"""


class Death(StrEnum):
    """What the death of an actor means for its job."""

    REPLACE = "replace"
    """another one takes its place; the rest train on"""
    RECOVER = "recover"
    """its backup takes its place; without one, all go back to the last checkpoint"""
    RENEW = "renew"
    """it is started again; no core waits for it, and it held nothing"""
    SUCCEED = "succeed"
    """another one takes over, and asks all cores what they know"""


class Traits(NamedTuple):
    """One role."""

    core: str
    """The class that does the work, `module:name`."""
    shell: str
    """The Ray actor that hosts it, likewise; this package imports none."""
    room: Room
    talks_to: frozenset[Role]
    death: Death
    runs_user_code: bool = False
    """Whether it builds the task, and so needs the environment the user asked for."""
    computes: bool = True
    """Whether it computes with tensors; a process that does not stays small."""


_EVERY_ROLE = frozenset(Role)
_NOT_WORKERS = frozenset(Role) - {Role.WORKER, Role.STAGE}

ROLES: Mapping[Role, Traits] = MappingProxyType(
    {
        Role.COORDINATOR: Traits(
            "raysync.engine.coordinator:Coordinator",
            "actors.shell.coordinator:CoordinatorActor",
            Room.BESIDE,
            _EVERY_ROLE,
            Death.SUCCEED,
            computes=False,
        ),
        Role.SHARD: Traits(
            "raysync.engine.server.shard:Shard",
            "actors.shell.shard:ShardActor",
            Room.BESIDE,
            _EVERY_ROLE - {Role.EVALUATOR},
            Death.RECOVER,
        ),
        Role.EVALUATOR: Traits(
            "raysync.engine.evaluator:Evaluator",
            "actors.shell.evaluator:EvaluatorActor",
            Room.BESIDE,
            frozenset({Role.COORDINATOR, Role.WORKER, Role.STAGE}),
            Death.RENEW,
            runs_user_code=True,
        ),
        Role.STAGE: Traits(
            "raysync.engine.stage:Stage",
            "actors.shell.worker:WorkerActor",
            Room.RESERVED,
            _EVERY_ROLE - {Role.WORKER},
            Death.REPLACE,
            runs_user_code=True,
        ),
        Role.WORKER: Traits(
            "raysync.engine.worker:Worker",
            "actors.shell.worker:WorkerActor",
            Room.RESERVED,
            _NOT_WORKERS,
            Death.REPLACE,
            runs_user_code=True,
        ),
    }
)


def found(path: str) -> Any:
    """Return the class a row names."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)

"""Addresses: what names every core of a job, wherever it runs."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import TypeVar

import msgspec

T = TypeVar("T")


class Role(StrEnum):
    """What a core does; `raysync.control.roles` says how each role is built, placed and watched."""

    COORDINATOR = "coordinator"
    EVALUATOR = "evaluator"
    SHARD = "shard"
    STAGE = "stage"
    WORKER = "worker"


class Address(msgspec.Struct, frozen=True, order=True, array_like=True, cache_hash=True):
    """A core's name: its role, the pipeline stage it belongs to (0 where there is but one), its number.

    As text `coordinator`, `worker/3`, or with a stage `shard/1/3`; a pipeline's stages are `stage/1/3` and also
    `stage/0/3`.
    """

    role: Role
    stage: int = 0
    index: int = 0

    def __str__(self) -> str:
        if self.role in _ALONE:
            return self.role.value
        has_stage = self.stage or self.role is Role.STAGE
        return f"{self.role.value}/{self.stage}/{self.index}" if has_stage else f"{self.role.value}/{self.index}"

    @property
    def spoken(self) -> str:
        """The address in a sentence: `worker 3`, `stage 1 of pipeline 3`."""
        if self.role is Role.STAGE:
            return f"stage {self.stage} of pipeline {self.index}"
        return str(self).replace("/", " ")

    def at(self, stage: int) -> Address:
        """Return who has this place at another stage."""
        return self if stage == self.stage else Address(self.role, stage, self.index)

    @staticmethod
    def parse(text: str) -> Address:
        """Return the address a text stands for; raise `ValueError` for one that stands for none."""
        role, *numbers = text.split("/")
        is_plain = len(numbers) <= 2 and all(number.isascii() and number.isdecimal() for number in numbers)
        if role in Role._value2member_map_ and is_plain:
            address = Address(Role(role), *[0, 0, *map(int, numbers)][-2:])
            if str(address) == text:
                return address
        raise ValueError(f"{text!r} is no address; addresses are coordinator, worker/3, shard/0, stage/1/0")


_ALONE = (Role.COORDINATOR, Role.EVALUATOR)
"""Roles of which a job has one core at most."""

COORDINATOR = Address(Role.COORDINATOR)
EVALUATOR = Address(Role.EVALUATOR)


@lru_cache(maxsize=4096)
def worker(index: int) -> Address:
    """Return the address of a data-parallel worker."""
    return Address(Role.WORKER, 0, index)


@lru_cache(maxsize=4096)
def stage(number: int, pipeline: int) -> Address:
    """Return the address of a stage of one of the pipelines."""
    return Address(Role.STAGE, number, pipeline)


@lru_cache(maxsize=4096)
def shard(index: int) -> Address:
    """Return the address of a shard of the parameter server."""
    return Address(Role.SHARD, 0, index)


def by_text(values: Mapping[Address, T]) -> dict[str, T]:
    """Return values by the text of their address, as they are saved."""
    return {str(address): value for address, value in values.items()}


def by_address(values: Mapping[str, T]) -> dict[Address, T]:
    """Return what `by_text` was given."""
    return {Address.parse(text): value for text, value in values.items()}

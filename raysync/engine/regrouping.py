"""A checkpoint's parts for another number of shards, workers or pipelines than it was taken with.

Shards' states are kept by block, and the cut into blocks stays the same: a shard of the new number takes the blocks it
owns from whoever had them. A worker that is not started again has died with the cut, as far as the others know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from raysync.address import COORDINATOR, Address, Role
from raysync.blocks import Block, Content, assign
from raysync.spec import JobSpec

_BY_BLOCK = ("blocks", "ledgers", "parts")


def shard_state(slot: int, num_shards: int, states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the state of the shard of a slot, given those of all shards there were."""
    found = [*states]
    whole: dict[str, dict[int, Any]] = {name: {} for name in _BY_BLOCK}
    for state in found:
        for name in _BY_BLOCK:
            whole[name] |= state.get(name, {})
    sizes = {index: len(block["x"]) for index, block in whole["blocks"].items()}
    blocks = [Block(index, Content.PARAMETER, 0, sizes[index]) for index in sorted(sizes)]
    owners = {block.index: owner for block, owner in zip(blocks, assign(blocks, num_shards), strict=True)}
    own = {name: {index: kept for index, kept in whole[name].items() if owners.get(index) == slot} for name in whole}
    return {**found[0], "answer": None, **own}


def regrouped(
    spec: JobSpec, parts: Mapping[Address, Mapping[str, Any]], workers: Iterable[int] | None = None
) -> dict[Address, Mapping[str, Any]]:
    """Return the parts of a checkpoint as a job goes on from them that has its own number of shards, and starts with
    these workers, or pipelines; all by default.
    """
    shards = {who: state for who, state in parts.items() if who.role is Role.SHARD}
    indices = {who.index for who in parts if who.role in (Role.WORKER, Role.STAGE)}
    kept = indices if workers is None else indices & {*workers}
    found = {who: state for who, state in parts.items() if who == COORDINATOR or who.index in kept}
    found = {who: state for who, state in found.items() if who.role is not Role.SHARD}
    if len({who.index for who in shards}) == spec.scale.shards:
        return found | shards
    for stage in {who.stage for who in shards}:
        states = [shards[who] for who in sorted(shards) if who.stage == stage]
        for slot in range(spec.scale.shards):
            found[Address(Role.SHARD, stage, slot)] = shard_state(slot, spec.scale.shards, states)
    return found

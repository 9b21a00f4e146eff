"""What a job goes on from: the newest checkpoint that is as it was written, and each core's state in it."""

from __future__ import annotations

from typing import Any

from actors.storage.checksums import checksum_of_stream
from actors.storage.folder import Folder, completed, part_name, read_manifest, read_part
from raysync.address import Address, Role
from raysync.engine.regrouping import shard_state
from raysync.errors import CheckpointError


def damage(folder: Folder) -> str | None:
    """Return what is wrong with a checkpoint, all of which is read for it; None if it is as it was written."""
    try:
        manifest = read_manifest(folder)
    except (CheckpointError, ValueError) as error:
        return getattr(error, "problem", str(error))
    wrong = [name for name, wanted in manifest.get("checksums", {}).items() if _checksum(folder, name) != wanted]
    return f"{', '.join(wrong)} damaged: the checksum is not the manifest's" if wrong else None


def _checksum(folder: Folder, name: str) -> str:
    with folder.filesystem.open_input_stream(f"{folder.path}/{name}") as stream:
        return checksum_of_stream(stream)


def newest_sound(job: Folder) -> tuple[str | None, dict[str, str]]:
    """Return the name of the newest checkpoint that is as it was written, and what is wrong with each newer one."""
    wrong: dict[str, str] = {}
    for name in reversed(completed(job)):
        problem = damage(job.at(name))
        if problem is None:
            return name, wrong
        wrong[name] = problem
    return None, wrong


def saved_state(folder: Folder, address: Address, num_shards: int) -> Any:
    """Return the state a core of a job goes on from that has so many shards now; None if the checkpoint has none."""
    if address.role is not Role.SHARD:
        return None if folder.size(part_name(address)) is None else read_part(folder, address)
    count = shards_of(folder)
    if count == num_shards:
        return read_part(folder, address)
    old = (Address(Role.SHARD, address.stage, slot) for slot in range(count))
    return shard_state(address.index, num_shards, (read_part(folder, who) for who in old))


def shards_of(folder: Folder) -> int:
    """Return how many shards a checkpoint was taken with."""
    files: dict[str, int] = read_manifest(folder)["files"]
    return sum(name.startswith("shard-") for name in files) // max(1, sum(name.startswith("model") for name in files))

"""The shard actor: a part of the parameter server."""

from __future__ import annotations

from typing import Any

import ray

from actors.shell.core_actor import CONCURRENCY, CoreActor
from actors.shell.kernels import prepare_codecs
from actors.shell.seat import Seat
from actors.storage.folder import Folder
from raysync.address import Address
from raysync.errors import NotRunning
from raysync.spec import JobSpec


def shard_seat(address: Address, spec: JobSpec, folder: Folder, saved: dict[str, Any] | None) -> Seat:
    """Return a shard core with its place to save to."""
    from raysync.engine.server.shard import Shard

    prepare_codecs(spec.compression)
    core = Shard(address, spec)
    if saved is not None:
        core.load_state_dict(saved)
    return Seat(core, folder)


@ray.remote(concurrency_groups=CONCURRENCY)
class ShardActor(CoreActor):
    """Shards in a process of their own."""

    def seats(self) -> dict[Address, Seat]:
        """Build the shard."""
        import torch

        torch.set_num_threads(1)
        self._readers: set[str] = set()
        return {
            address: shard_seat(address, self.spec, self.folder, self._saved(address))
            for address in self.assignment.addresses
        }

    @ray.method(concurrency_group="control")
    def final_values(self, reader: str) -> dict[int, bytes]:
        """Return every block as the server holds it, exactly, once no worker pushes any more; note who has read it."""
        host = self._host
        if host is None:
            raise NotRunning(self.assignment.job, "STARTING", "its shard has not begun")
        cores: list[Any] = [host.seat(address).core for address in self.assignment.addresses]
        found = host.ask(lambda: {index: block.exact() for core in cores for index, block in core.blocks.items()})
        self._readers.add(reader)
        return found

    @ray.method(concurrency_group="control")
    def readers(self) -> int:
        """Return how many workers have read the final values."""
        return len(self._readers)

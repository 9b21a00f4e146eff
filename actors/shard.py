"""The shard actor: a part of the parameter server."""

from __future__ import annotations

from typing import Any

import ray

from actors.core_actor import CONCURRENCY, CoreActor
from actors.host import Seat
from actors.storage import Folder, checkpoint_name, write_part
from raysync.engine.messages import Message, Send
from raysync.spec import JobSpec


class ShardSeat:
    """A shard core with its place to save to."""

    done = is_ready = False
    """A shard only answers, until it is stopped."""

    def __init__(self, address: str, spec: JobSpec, folder: Folder, saved: dict[str, Any] | None) -> None:
        from raysync.engine.shard import Shard

        self._folder = folder
        self.core = Shard(int(address.removeprefix("shard/")), spec, keep=self._keep)
        if saved is not None:
            self.core.load_state_dict(saved)

    def handle(self, message: Message) -> list[Send]:
        """Take in a message."""
        return self.core.handle(message)

    def retry(self) -> list[Send]:
        """Shards only answer."""
        return []

    def settle(self) -> None:
        """Shards owe nothing."""

    def work(self) -> list[Send]:
        """Shards only answer."""
        return []

    def _keep(self, snapshot: int, address: str, state: dict[str, Any]) -> None:
        write_part(self._folder.at(checkpoint_name(snapshot)), address, state)


@ray.remote(concurrency_groups=CONCURRENCY)
class ShardActor(CoreActor):
    """Shards in a process of their own."""

    def seats(self) -> dict[str, Seat]:
        """Build the shard."""
        import torch

        torch.set_num_threads(1)
        return {
            address: ShardSeat(address, self.spec, self.folder, self._saved(address))
            for address in self.assignment.addresses
        }

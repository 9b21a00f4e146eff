"""The versions of a stage's weights that microbatches in flight were computed with: a ring of flat vectors.

A version is rebound, not copied: the module's parameters become views into another vector. A step is the only copy, of
the newest version into the vector of the one no microbatch needs any more.
"""

from __future__ import annotations

from torch import Tensor

from raysync.engine.training.replica import Replica


class Stash:
    """Weights by the number of steps that made them."""

    def __init__(self, replica: Replica, versions: int) -> None:
        self._replica = replica
        self._free: list[Tensor] = [replica.flat.clone() for _ in range(versions - 1)]
        self._kept: dict[int, Tensor] = {}
        self.newest = 0
        """The number of the weights the replica trains."""
        self._users: dict[int, int] = {}

    @property
    def bytes(self) -> int:
        """What the versions beside the newest take."""
        return sum(4 * len(vector) for vector in (*self._free, *self._kept.values()))

    def use(self, version: int) -> None:
        """A forward pass uses the newest weights, which have this number."""
        self._users[version] = self._users.get(version, 0) + 1

    def wear(self, version: int) -> None:
        """Give the replica a version's weights."""
        if version in self._kept:
            self._kept[self._worn] = self._replica.flat
            self._replica.rebind(self._kept.pop(version))
            self._worn = version

    def done(self, version: int) -> None:
        """The backward pass of a microbatch is done: put the newest weights on again, and let go of a version that no
        other microbatch needs.
        """
        self.wear(self.newest)
        self._users[version] -= 1
        if not self._users[version]:
            del self._users[version]
            if version in self._kept:
                self._free.append(self._kept.pop(version))

    def begin_step(self) -> None:
        """The newest weights are about to change: keep them as they are if a microbatch needs them."""
        if self._users.get(self.newest):
            old = self._replica.flat
            fresh = self._free.pop() if self._free else old.clone()
            fresh.copy_(old)
            self._kept[self.newest] = old
            self._replica.rebind(fresh)
        self.newest += 1
        self._worn = self.newest

    def forget(self) -> None:
        """No microbatch is in flight any more."""
        self._free += self._kept.values()
        self._kept, self._users = {}, {}

    _worn = 0
    """The number of the weights the replica has on."""

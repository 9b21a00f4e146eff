"""`sparse_parts`: replicas take local steps; parts of their parameters are averaged while they go on. A round of all of
them comes only where they meet: it carries displacements, and ends with every replica the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from raysync.engine.exchange.displacement import Displacement

if TYPE_CHECKING:
    from torch import Tensor

    from raysync.engine.training.replica import Replica
    from raysync.engine.training.shared_vector import SharedVector


class SparseParts(Displacement):
    """The way of async_sparse."""

    averages_parts: ClassVar[bool] = True
    shows_common: ClassVar[bool] = False

    def shown(self, replica: Replica, shared: SharedVector) -> Tensor:
        return replica.flat

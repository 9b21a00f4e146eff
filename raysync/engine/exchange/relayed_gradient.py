"""`relayed_gradient`: the server averages gradients and hands the mean on; each worker's own optimizer steps with it.

Replicas that did not share a step stay apart. What must bring them together (the last step, a newcomer) carries
displacements instead, uncompressed: it happens once in a long while, and is to leave nothing behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from raysync.compress import Compressor, Identity
from raysync.engine.exchange.base import Exchange
from raysync.sync.base import PayloadKind

if TYPE_CHECKING:
    from torch import Tensor

    from raysync.engine.server.block import ParameterBlock
    from raysync.engine.training.replica import Replica
    from raysync.engine.training.shared_vector import SharedVector


class RelayedGradient(Exchange):
    """The way of DDP, and of SelSync's gradient aggregation."""

    payload: ClassVar[PayloadKind] = "gradient"
    forced_payload: ClassVar[PayloadKind] = "displacement"
    shows_common: ClassVar[bool] = False

    def decided(self, replica: Replica, lr: float, carried: PayloadKind | None) -> None:
        if carried != "gradient":
            replica.step(lr)

    def closed(self, replica: Replica, shared: SharedVector, lr: float, carried: PayloadKind, resets: bool) -> None:
        if carried == "gradient":
            replica.step_with_mean(lr)
            shared.adopt_extras()
        else:
            shared.adopt()

    def shown(self, replica: Replica, shared: SharedVector) -> Tensor:
        return replica.flat

    def codec(self, codec: Compressor, carried: PayloadKind) -> Compressor:
        return Identity() if carried == "displacement" else codec

    def answer(
        self, block: ParameterBlock, mean: Tensor, carried: PayloadKind, lr: float | None, has_moved: bool
    ) -> Tensor | None:
        return mean if carried == "gradient" else super().answer(block, mean, carried, lr, has_moved)

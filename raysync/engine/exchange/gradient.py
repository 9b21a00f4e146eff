"""`gradient`: a round carries gradients; the server steps the user's optimizer with their mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from raysync.engine.exchange.base import Exchange
from raysync.sync.base import PayloadKind

if TYPE_CHECKING:
    from torch import Tensor

    from raysync.engine.server.block import ParameterBlock


class Gradient(Exchange):
    """The way of a parameter server: bsp and ssp."""

    payload: ClassVar[PayloadKind] = "gradient"
    forced_payload: ClassVar[PayloadKind] = "gradient"
    server_steps: ClassVar[bool] = True

    def step(self, block: ParameterBlock, mean: Tensor, lr: float | None) -> None:
        block.move(mean, lr)

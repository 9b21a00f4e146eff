"""The port between a strategy and the vectors: what a round carries, who steps with it, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from raysync.compress import Compressor
from raysync.sync.base import PayloadKind

if TYPE_CHECKING:
    from torch import Tensor

    from raysync.engine.server.block import ParameterBlock
    from raysync.engine.training.replica import Replica
    from raysync.engine.training.shared_vector import SharedVector


class Exchange:
    """One way for updates to travel. Without state: replicas, shared vectors and blocks hold it."""

    payload: ClassVar[PayloadKind]
    """What a round carries."""
    forced_payload: ClassVar[PayloadKind]
    """What a round carries that must bring all replicas together, whatever the strategy says."""
    server_steps: ClassVar[bool] = False
    """Whether the user's optimizer lives on the server, so that workers train the visible parameters themselves."""

    averages_parts: ClassVar[bool] = False
    """Whether parts of the parameters are averaged between rounds, while workers go on."""

    shows_common: ClassVar[bool] = True
    """Whether all workers of a step show the same parameters, those of the last round."""

    def computed(self, replica: Replica, lr: float) -> None:
        """A gradient has been computed; no decision about its step is known yet."""

    def decided(self, replica: Replica, lr: float, carried: PayloadKind | None) -> None:
        """The decision about a step has come: its round carries `carried`, None if there is no round."""

    def closed(self, replica: Replica, shared: SharedVector, lr: float, carried: PayloadKind, resets: bool) -> None:
        """Every block of a round has arrived; `resets` if the optimizer's moments begin anew after it."""
        shared.adopt()

    def landed(self, replica: Replica, shared: SharedVector, resets: bool) -> None:
        """A round has come while the worker went on; `resets` as above."""
        raise NotImplementedError

    def shown(self, replica: Replica, shared: SharedVector) -> Tensor:
        """Return the parameters that are evaluated and saved."""
        return shared.visible

    def codec(self, codec: Compressor, carried: PayloadKind) -> Compressor:
        """Return the codec of a payload, given the one the job asks for."""
        return codec

    def step(self, block: ParameterBlock, mean: Tensor, lr: float | None) -> None:
        """Let the server's optimizer move a block by the mean of what workers sent; towards a displacement."""
        block.move(mean.neg_(), None)

    def answer(
        self, block: ParameterBlock, mean: Tensor, carried: PayloadKind, lr: float | None, has_moved: bool
    ) -> Tensor | None:
        """Take in a round's mean on the server; return what is to be handed on in place of the block's change, None
        for the change itself. `has_moved` is false for a round to which no worker contributed.
        """
        if has_moved:
            self.step(block, mean, lr)
        return None

"""`displacement`: workers take local steps; a round carries local parameters minus the last visible ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from raysync.engine.exchange.base import Exchange
from raysync.sync.base import PayloadKind

if TYPE_CHECKING:
    from raysync.engine.training.replica import Replica
    from raysync.engine.training.shared_vector import SharedVector


class Displacement(Exchange):
    """The way of averaging strategies: selsync, fedavg, local_sgd, diloco."""

    payload: ClassVar[PayloadKind] = "displacement"
    forced_payload: ClassVar[PayloadKind] = "displacement"

    def computed(self, replica: Replica, lr: float) -> None:
        replica.step(lr)

    def closed(self, replica: Replica, shared: SharedVector, lr: float, carried: PayloadKind, resets: bool) -> None:
        shared.adopt()
        if resets:
            replica.reset_optimizer()

    def landed(self, replica: Replica, shared: SharedVector, resets: bool) -> None:
        shared.land()
        if resets:
            replica.reset_optimizer()

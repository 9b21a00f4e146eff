"""What SelSync listens to. To add a signal: write `raysync/sync/signal/<kind>.py` and name it in the union below."""

from __future__ import annotations

from raysync.sync.signal.base import Meter, Signal, StepStats
from raysync.sync.signal.divergence import Divergence
from raysync.sync.signal.fixed import Fixed
from raysync.sync.signal.grad_change import GradChange
from raysync.sync.signal.random import Random

AnySignal = GradChange | Divergence | Random | Fixed

__all__ = ["AnySignal", "Divergence", "Fixed", "GradChange", "Meter", "Random", "Signal", "StepStats"]

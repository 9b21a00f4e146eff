"""Optimizers as values: the worker's own (`optimizer`) and the server's (`outer`) come from the same family.

To add one: write `raysync/optim/<kind>.py` with a `build` method over flat tensors and name it in the union below.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from raysync.optim.adam import Adam
from raysync.optim.adamw import AdamW
from raysync.optim.base import Optimizer
from raysync.optim.lookahead import LookAhead
from raysync.optim.sgd import SGD

AnyOptimizer = Annotated[SGD | Adam | AdamW | LookAhead, Field(discriminator="kind")]

__all__ = ["SGD", "Adam", "AdamW", "AnyOptimizer", "LookAhead", "Optimizer"]

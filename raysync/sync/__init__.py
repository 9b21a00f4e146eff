"""When to synchronise. To add a strategy: write `raysync/sync/<kind>.py` and name it in the union below."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from raysync.sync.async_sparse import AsyncSparse
from raysync.sync.base import Averaging, Choice, Needs, PayloadKind, StepContext, Strategy
from raysync.sync.bsp import BSP
from raysync.sync.diloco import DiLoCo
from raysync.sync.fedavg import FedAvg
from raysync.sync.local_sgd import LocalSGD
from raysync.sync.selsync import SelSync
from raysync.sync.ssp import SSP

AnyStrategy = Annotated[BSP | SelSync | SSP | FedAvg | LocalSGD | DiLoCo | AsyncSparse, Field(discriminator="kind")]

__all__ = [
    "BSP",
    "SSP",
    "AnyStrategy",
    "AsyncSparse",
    "Averaging",
    "Choice",
    "DiLoCo",
    "FedAvg",
    "LocalSGD",
    "Needs",
    "PayloadKind",
    "SelSync",
    "StepContext",
    "Strategy",
]

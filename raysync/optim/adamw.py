"""`adamw`: Adam with decoupled weight decay (Loshchilov & Hutter 2019)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from raysync.optim.adam import AdamMoments


class AdamW(AdamMoments):
    """AdamW."""

    kind: Literal["adamw"] = "adamw"
    weight_decay: float = Field(default=0.01, ge=0, allow_inf_nan=False)
    decouples_weight_decay: ClassVar[bool] = True

"""`adamw`: Adam with decoupled weight decay (Loshchilov & Hutter 2019)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from raysync.optim.adam import AdamMoments

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class AdamW(AdamMoments):
    """AdamW."""

    kind: Literal["adamw"] = "adamw"
    weight_decay: float = Field(default=0.01, ge=0, allow_inf_nan=False)

    def build(self, flat: Tensor) -> torch.optim.Optimizer:
        import torch

        return torch.optim.AdamW([flat], self.lr, (self.beta1, self.beta2), self.eps, self.weight_decay)

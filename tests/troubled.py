"""A task that trains well or goes wrong in one of the ways jobs of users do, as its `mode` says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from raysync.tasks import Digits

if TYPE_CHECKING:
    from torch import Tensor, nn


class Troubled(Digits):
    """Small; `fine`, or `nan`, `memory` or `raises` from its first step on."""

    hidden: tuple[int, ...] = (16,)
    mode: str = "fine"

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the loss, if there is one."""
        loss = super().loss(model, batch)
        match self.mode:
            case "nan":
                return loss * float("nan")
            case "memory":
                return loss + torch.zeros(1 << 50).sum()
            case "raises":
                raise KeyError("a column that is not there")
        return loss

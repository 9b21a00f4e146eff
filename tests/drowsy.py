"""A task for jobs that are only to be there: it trains, and mostly sleeps, so that two cores carry several at once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from raysync.tasks import CharLM, Digits

if TYPE_CHECKING:
    from torch import Tensor, nn

TASK = {"kind": "custom", "entrypoint": "tests.drowsy:Drowsy"}
_STEP_S = 0.01


class Drowsy(Digits):
    """Small steps of about the same length."""

    hidden: tuple[int, ...] = (16,)
    nap_s: float = _STEP_S

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the loss, after a nap."""
        time.sleep(self.nap_s)
        return super().loss(model, batch)


class DrowsyText(CharLM):
    """The same with a small language model, whose loss is steadier."""

    width: int = 16
    depth: int = 4
    heads: int = 2
    context: int = 16
    corpus_bytes: int = 50_000

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the loss, after a nap."""
        time.sleep(_STEP_S)
        return super().loss(model, batch)

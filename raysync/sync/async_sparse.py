"""`async_sparse`: a rotating part of the weights is averaged between replicas and lands `delay_steps` late, EMA-
corrected.

AsyncMesh (Ajanthan et al. 2026). With c = ceil(1 / sparse_fraction) parts and k = floor(delay_steps / c)
overlapping flights of one coordinate, the replicas' disagreement obeys e[n+1] = e[n] - (1 - beta) e[n-k], which is
stable iff 1 - beta < 2 sin(pi / (2 (2k + 1))).
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from raysync.sync.base import Strategy
from raysync.value import whole


class AsyncSparse(Strategy):
    """Asynchronous sparse averaging; runs with the pipeline stages."""

    kind: Literal["async_sparse"] = "async_sparse"
    runs: ClassVar[bool] = False
    sparse_fraction: float = Field(default=0.05, gt=0, le=1)
    """Fraction of the weights averaged per step."""
    delay_steps: int = Field(default=10, ge=0)
    """tau: steps between the start of an averaging and its landing."""
    ema_beta: float = Field(default=0.5, ge=0, lt=1)
    """Share of the old displacement kept by the correction."""

    @property
    def num_parts(self) -> int:
        """c: how many rounds it takes to average every weight once."""
        return -whole(-1 / self.sparse_fraction)

    @model_validator(mode="after")
    def _stable(self) -> Self:
        flights = self.delay_steps // self.num_parts
        limit = 2 * math.sin(math.pi / (2 * (2 * flights + 1)))
        if 1 - self.ema_beta >= limit:
            raise ValueError(
                f"sparse_fraction={self.sparse_fraction} with delay_steps={self.delay_steps} puts {flights} flights of "
                f"a weight in the air at once and diverges unless ema_beta > {1 - limit:.3f} (got {self.ema_beta}); "
                "raise ema_beta, or keep sparse_fraction * delay_steps below 1 "
                f"(sparse_fraction < {1 / max(1, self.delay_steps):.3g})"
            )
        return self

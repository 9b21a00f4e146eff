"""`quadratic`: loss(w) = mean over samples a of 1/2 sum_j h_j (w_j - a_j)^2; every quantity is known in closed
form.

The minimum of the training loss is the mean of the samples; curvatures h run from 1 down to 1 / `condition`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from raysync.tasks.base import MapDataset, Task, TaskSpec

if TYPE_CHECKING:
    from torch import Tensor, nn


class Quadratic(TaskSpec):
    """A noisy bowl of any dimension, for tests that know the answer."""

    kind: Literal["quadratic"] = "quadratic"
    metric_names: ClassVar[tuple[str, ...] | None] = ("eval/loss", "eval/distance")
    dim: int = Field(default=20, ge=1)
    samples: int = Field(default=256, ge=1)
    noise: float = Field(default=1.0, ge=0)
    """Standard deviation of the samples around the minimum."""
    condition: float = Field(default=10.0, ge=1)
    data_seed: int = 0

    def build(self) -> Task:
        return self

    def model(self) -> nn.Module:
        """Return a module whose single parameter is w, drawn from the standard normal."""
        import torch
        from torch import nn

        module = nn.Module()
        module.register_parameter("w", nn.Parameter(torch.randn(self.dim)))
        return module

    def train_data(self) -> MapDataset:
        """Return the samples a."""
        import torch
        from torch.utils.data import TensorDataset

        generator = torch.Generator().manual_seed(self.data_seed)
        center = torch.randn(self.dim, generator=generator)
        return TensorDataset(center + self.noise * torch.randn(self.samples, self.dim, generator=generator))

    def eval_data(self) -> MapDataset:
        """Return the training samples: the minimum is theirs."""
        return self.train_data()

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean of 1/2 sum_j h_j (w_j - a_j)^2."""
        import torch

        (samples,) = batch
        curvature = torch.logspace(0, -1, self.dim, base=self.condition)
        offset: Tensor = model.get_parameter("w") - samples
        return 0.5 * (curvature * offset.square()).sum(dim=1).mean()

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, float]:
        """Return the distance from the minimum of this batch."""
        (samples,) = batch
        return {"distance": (model.get_parameter("w") - samples.mean(dim=0)).norm().item()}

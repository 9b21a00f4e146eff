"""An optimizer is a frozen value that builds a torch optimizer over one flat tensor; all members act element by
element.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from raysync.value import Value

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Optimizer(Value):
    """The family of update rules. Element by element, so that cutting the vector into blocks changes nothing."""

    kind: str
    lr: float = Field(gt=0, allow_inf_nan=False)
    """Step size; the schedule multiplies it, the knob `lr` replaces it."""
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)

    moments: ClassVar[tuple[str, ...]] = ()
    """Names of the per-element state torch keeps, in a fixed order."""

    def build(self, flat: Tensor) -> torch.optim.Optimizer:
        """Return the torch optimizer that updates `flat` from `flat.grad`."""
        raise NotImplementedError

    def state(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the state torch would hold after zero steps, so that it can be saved, averaged and reset at any
        time.
        """
        import torch

        return {name: torch.zeros_like(flat) for name in self.active_moments}

    @property
    def active_moments(self) -> tuple[str, ...]:
        """The moments this value really keeps."""
        return self.moments

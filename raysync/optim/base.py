"""An optimizer is a frozen value that updates one flat tensor in place, by torch's own functions and with torch's
names for its state; all members act element by element.

The functions, not the classes: making a `torch.optim` object imports torch's compiler, two seconds in every process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import Field

from raysync.value import Value

if TYPE_CHECKING:
    from torch import Tensor


class Optimizer(Value):
    """The family of update rules. Element by element, so that cutting the vector into blocks changes nothing."""

    kind: str
    lr: float = Field(gt=0, allow_inf_nan=False)
    """Step size; the schedule multiplies it, the knob `lr` replaces it."""
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)

    moments: ClassVar[tuple[str, ...]] = ()
    """Names of the per-element state torch keeps, in a fixed order."""

    def update(self, flat: Tensor, grad: Tensor, state: dict[str, Tensor], lr: float | None = None) -> None:
        """Step `flat` along `grad` at rate `lr` (its own by default), and `state` with it."""
        raise NotImplementedError

    def update_into(
        self, out: Tensor, flat: Tensor, grad: Tensor, state: dict[str, Tensor], lr: float | None = None
    ) -> None:
        """Do the same, but leave `flat` as it is and put what comes of it into `out`."""
        out.copy_(flat)
        self.update(out, grad, state, lr)

    def at_stage(self, stage: int, stages: int) -> Self:
        """Return the rule of a pipeline's stage; the same on all by default."""
        return self

    def state(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the state after zero steps."""
        import torch

        return {name: torch.zeros_like(flat) for name in self.active_moments}

    @property
    def active_moments(self) -> tuple[str, ...]:
        """The moments this value really keeps."""
        return self.moments

"""`sgd`: v = momentum * v + g; w -= lr * v (or lr * (g + momentum * v) with `nesterov`), torch's convention."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from raysync.optim.base import Optimizer

if TYPE_CHECKING:
    from torch import Tensor


class SGD(Optimizer):
    """Stochastic gradient descent with momentum."""

    kind: Literal["sgd"] = "sgd"
    lr: float = Field(default=0.1, gt=0, allow_inf_nan=False)
    momentum: float = Field(default=0.0, ge=0, lt=1)
    nesterov: bool = False

    moments: ClassVar[tuple[str, ...]] = ("momentum_buffer",)

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> Self:
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov=true needs momentum > 0, for example momentum: 0.9")
        return self

    def update(self, flat: Tensor, grad: Tensor, state: dict[str, Tensor], lr: float | None = None) -> None:
        from torch.optim.sgd import sgd

        sgd(
            [flat],
            [grad],
            [state.get("momentum_buffer")],
            foreach=False,
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            lr=self.lr if lr is None else lr,
            dampening=0.0,
            nesterov=self.nesterov,
            maximize=False,
        )

    def update_into(
        self, out: Tensor, flat: Tensor, grad: Tensor, state: dict[str, Tensor], lr: float | None = None
    ) -> None:
        """Do the same in the same order of operations, with one pass less over the vector."""
        import torch

        if self.weight_decay:
            grad = grad.add(flat, alpha=self.weight_decay)
        if self.momentum:
            buffer = state["momentum_buffer"].mul_(self.momentum).add_(grad, alpha=1.0)
            grad = grad.add(buffer, alpha=self.momentum) if self.nesterov else buffer
        torch.add(flat, grad, alpha=-(self.lr if lr is None else lr), out=out)

    @property
    def active_moments(self) -> tuple[str, ...]:
        return self.moments if self.momentum else ()

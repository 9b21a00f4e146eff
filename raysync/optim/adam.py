"""`adam`: Kingma & Ba 2015, with weight decay added to the gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from raysync.optim.base import Optimizer

if TYPE_CHECKING:
    from torch import Tensor


class AdamMoments(Optimizer):
    """What `adam` and `adamw` share: two moving averages per element and a step count."""

    lr: float = Field(default=1e-3, gt=0, allow_inf_nan=False)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.999, ge=0, lt=1)
    eps: float = Field(default=1e-8, gt=0)

    moments: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")
    decouples_weight_decay: ClassVar[bool] = False

    def state(self, flat: Tensor) -> dict[str, Tensor]:
        import torch

        return {"step": torch.tensor(0.0), **super().state(flat)}

    def update(self, flat: Tensor, grad: Tensor, state: dict[str, Tensor], lr: float | None = None) -> None:
        from torch.optim.adam import adam

        adam(
            [flat],
            [grad],
            [state["exp_avg"]],
            [state["exp_avg_sq"]],
            [],
            [state["step"]],
            foreach=False,
            decoupled_weight_decay=self.decouples_weight_decay,
            amsgrad=False,
            beta1=self.beta1,
            beta2=self.beta2,
            lr=self.lr if lr is None else lr,
            weight_decay=self.weight_decay,
            eps=self.eps,
            maximize=False,
        )


class Adam(AdamMoments):
    """Adam."""

    kind: Literal["adam"] = "adam"

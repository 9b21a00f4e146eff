"""`lookahead`: Nesterov's method in the form that withstands late gradients (Ajanthan et al. 2025), scaled as Adam is.

    m = gamma m + (1 - gamma) g;   w -= lr (gamma m + (1 - gamma) g) / (sqrt(v) + eps)

g is a gradient of weights some steps old. The stored weights are the look-ahead point itself, so no copy is needed. The
factor (1 - gamma) is the discount without which a delay of one step diverges at rates a hundred times lower. With
`momentum: nadam` gamma grows as in Dozat 2016: slowly, so that a run of a thousand steps never sees it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field

from raysync.optim.base import Optimizer

if TYPE_CHECKING:
    from torch import Tensor


class LookAhead(Optimizer):
    """Discounted Nesterov momentum with decoupled weight decay, for gradients that come late."""

    kind: Literal["lookahead"] = "lookahead"
    lr: float = Field(default=1e-3, gt=0, allow_inf_nan=False)
    beta1: float = Field(default=0.99, ge=0, lt=1)
    """gamma: the momentum, on the first stage where it differs."""
    beta2: float = Field(default=0.999, ge=0, lt=1)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.01, ge=0, allow_inf_nan=False)
    momentum: Literal["constant", "nadam"] = "constant"
    momentum_decay: float = Field(default=0.004, ge=0)
    """nadam: how fast gamma grows."""
    is_scaled: bool = True
    """Divide by the root of the second moment; false leaves Nesterov's rule alone."""
    last_beta1: float | None = Field(default=None, ge=0, lt=1)
    """The momentum of the last stage, with those between on a line; None for `beta1` on all. Without a stash of weights
    0.9 is the published value.
    """

    moments: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")

    def state(self, flat: Tensor) -> dict[str, Tensor]:
        import torch

        return {"step": torch.tensor(0.0), "mu_product": torch.tensor(1.0, dtype=torch.float64), **super().state(flat)}

    @property
    def active_moments(self) -> tuple[str, ...]:
        return self.moments if self.is_scaled else self.moments[:1]

    def at_stage(self, stage: int, stages: int) -> Self:
        """Return the rule of a stage: momentum falls from the first to the last, whose gradients are not late."""
        if self.last_beta1 is None or stages == 1:
            return self
        beta1 = self.beta1 + (self.last_beta1 - self.beta1) * stage / (stages - 1)
        return self.model_copy(update={"beta1": beta1, "last_beta1": None})

    def update(self, flat: Tensor, grad: Tensor, state: dict[str, Tensor], lr: float | None = None) -> None:
        rate = self.lr if lr is None else lr
        state["step"] += 1
        step = float(state["step"])
        now, after = self._momentum(step), self._momentum(step + 1)
        if self.weight_decay:
            flat.mul_(1 - rate * self.weight_decay)
        mean = state["exp_avg"].mul_(now if self.momentum == "constant" else self.beta1)
        mean.add_(grad, alpha=1 - (now if self.momentum == "constant" else self.beta1))
        if not self.is_scaled:
            flat.add_(mean, alpha=-rate * now).add_(grad, alpha=-rate * (1 - now))
            return
        state["mu_product"] *= now
        product = float(state["mu_product"])
        scale = state["exp_avg_sq"].mul_(self.beta2).addcmul_(grad, grad, value=1 - self.beta2)
        root = scale.div(1 - self.beta2**step).sqrt_().add_(self.eps)
        flat.addcdiv_(mean, root, value=-rate * after / (1 - product * after))
        flat.addcdiv_(grad, root, value=-rate * (1 - now) / (1 - product))

    def _momentum(self, step: float) -> float:
        if self.momentum == "constant":
            return self.beta1
        return float(self.beta1 * (1 - 0.5 * 0.96 ** (step * self.momentum_decay)))

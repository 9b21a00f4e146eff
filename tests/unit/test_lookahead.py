"""The look-ahead optimizer: torch's NAdam where it says so, and how large a step late gradients allow."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from raysync.optim import SGD, LookAhead, Optimizer

PLAIN = SGD(lr=1.0)
EMA = SGD(lr=1.0, momentum=0.99)
"""Its rate counts a hundred times: heavy ball momentum is not discounted."""
DISCOUNTED = LookAhead(lr=1.0, beta1=0.99, is_scaled=False, weight_decay=0.0)
UNDISCOUNTED = SGD(lr=1.0, momentum=0.99, nesterov=True)

TABLE = {
    0: (2.000, 398.0, 134.0, 1.336),
    1: (1.000, 1.000, 9.137, 0.0914),
    3: (0.445, 0.335, 0.495, 0.0050),
    7: (0.209, 0.145, 0.168, 0.0017),
    15: (0.101, 0.068, 0.073, 0.0007),
}
"""By delay in steps: the largest stable rate on a parabola, as derived in the notes on the method."""


def is_stable(optimizer: Optimizer, rate: float, delay: int) -> bool:
    """Run on f(w) = w^2 / 2 with gradients of weights `delay` steps old: near its limit what grows or fades does so slowly,
    so two late stretches are compared.
    """
    weight = torch.ones(1, dtype=torch.float64)
    state = {name: value.double() for name, value in optimizer.state(weight).items()}
    past: list[Tensor] = [weight.clone()] * (delay + 1)
    heights = []
    for _ in range(6000):
        past = [*past[1:], weight.clone()]
        optimizer.update(weight, past[0].clone(), state, rate)
        heights.append(abs(float(weight)))
        if heights[-1] > 1e6:
            return False
    return max(heights[4000:]) <= max(heights[2000:4000])


@pytest.mark.parametrize("delay", TABLE)
@pytest.mark.parametrize(
    ("column", "optimizer", "scale"),
    [(0, PLAIN, 1.0), (1, EMA, 0.01), (2, DISCOUNTED, 1.0), (3, UNDISCOUNTED, 1.0)],
    ids=["plain", "ema momentum", "discounted", "undiscounted"],
)
def test_the_largest_stable_step(delay: int, column: int, optimizer: Optimizer, scale: float) -> None:
    """Just below the table's value it holds, just above it does not; the last column has one or two digits."""
    limit = TABLE[delay][column]
    margin = 0.02 if limit > 0.01 else 0.12
    assert is_stable(optimizer, (1 - margin) * limit * scale, delay)
    assert not is_stable(optimizer, (1 + margin) * limit * scale, delay)


def test_plain_steps_follow_the_closed_form() -> None:
    for delay, limits in TABLE.items():
        assert limits[0] == pytest.approx(2 * math.sin(math.pi / (2 * (2 * delay + 1))), rel=0.01)


def test_the_nadam_form_is_torchs() -> None:
    generator = torch.Generator().manual_seed(0)
    theirs = torch.randn(64, generator=generator).requires_grad_()
    ours = theirs.detach().clone()
    reference = torch.optim.NAdam([theirs], lr=0.01, betas=(0.99, 0.999), weight_decay=0.1, decoupled_weight_decay=True)
    optimizer = LookAhead(lr=0.01, momentum="nadam", weight_decay=0.1)
    state = optimizer.state(ours)
    for _ in range(50):
        theirs.grad = torch.randn(64, generator=generator)
        reference.step()
        optimizer.update(ours, theirs.grad.clone(), state)
    assert torch.allclose(ours, theirs.detach(), atol=1e-6)


def test_momentum_falls_from_the_first_stage_to_the_last() -> None:
    optimizer = LookAhead(beta1=0.99, last_beta1=0.9)
    assert [round(optimizer.at_stage(number, 4).beta1, 3) for number in range(4)] == [0.99, 0.96, 0.93, 0.9]
    assert LookAhead().at_stage(2, 4).beta1 == 0.99

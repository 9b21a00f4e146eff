"""Where an optimizer puts its result elsewhere it rounds as torch's own step does: bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from raysync.optim import SGD, Adam, AdamW, Optimizer

SIZE = 1003
RULES: list[tuple[type[Optimizer], dict[str, Any]]] = [
    (SGD, {"lr": 0.3}),
    (SGD, {"lr": 0.3, "weight_decay": 0.01}),
    (SGD, {"lr": 0.3, "momentum": 0.9}),
    (SGD, {"lr": 0.3, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    (Adam, {"lr": 0.01}),
    (AdamW, {"lr": 0.01, "weight_decay": 0.1}),
]


@pytest.mark.parametrize(("rule", "fields"), RULES, ids=lambda given: str(given))
@pytest.mark.parametrize("lr", [None, 0.017, 0.0])
def test_into_another_vector_is_the_same_step(rule: type[Optimizer], fields: dict[str, Any], lr: float | None) -> None:
    generator, optimizer = torch.Generator().manual_seed(1), rule(**fields)
    flat = torch.randn(SIZE, generator=generator) * torch.tensor([1e-30, 1.0, -0.0, 1e20]).repeat(SIZE)[:SIZE]
    in_place, elsewhere = flat.clone(), flat.clone()
    one, other = optimizer.state(flat), optimizer.state(flat)
    for _ in range(5):
        gradient = torch.randn(SIZE, generator=generator)
        gradient[::7] = -0.0
        before, out = elsewhere.clone(), torch.full((SIZE,), 7.0)
        optimizer.update(in_place, gradient.clone(), one, lr)
        optimizer.update_into(out, elsewhere, gradient.clone(), other, lr)
        assert torch.equal(elsewhere, before)
        elsewhere = out
        assert torch.equal(in_place.view(torch.int32), elsewhere.view(torch.int32))
        assert all(torch.equal(one[name], other[name]) for name in one)

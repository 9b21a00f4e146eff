"""What a replica around a user's own loop does with the loop's gradients, without Ray."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from raysync.engine.training.attached import AttachedReplica
from raysync.engine.training.norms import squared_norm_of
from raysync.spec import JobSpec, parse_spec

KINDS: dict[str, dict[str, Any]] = {
    "local_sgd": {"kind": "local_sgd"},
    "selsync": {"kind": "selsync", "delta": 0.3},
    "bsp": {"kind": "bsp", "relay": True},
}


def spec(kind: str) -> JobSpec:
    return parse_spec(
        {
            "task": {"kind": "custom", "entrypoint": "attached:loop"},
            "strategy": KINDS[kind],
            "data": {"batch_size": 1},
            "scale": {"workers": 2},
            "budget": {"steps": 10},
        }
    )


def made(kind: str) -> tuple[AttachedReplica, nn.Module]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Linear(4, 3), nn.Linear(3, 2))
    model.add_module("unused", nn.Linear(2, 2))
    return AttachedReplica(spec(kind), model, torch.optim.SGD(model.parameters(), lr=0.1)), model


def backward(model: nn.Module) -> list[torch.Tensor | None]:
    """Compute gradients, one of them sparse and some of them none; return them."""
    for parameter in model.parameters():
        parameter.grad = None
    embedding, *rest = [layer for name, layer in model.named_children() if name != "unused"]
    assert isinstance(model, nn.Sequential)
    hidden = embedding(torch.tensor([1, 3, 3]))
    for layer in rest:
        hidden = layer(hidden)
    hidden.square().sum().backward()  # type: ignore[no-untyped-call]
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("kind", KINDS)
def test_the_norms_are_those_of_the_loops_gradients(kind: str) -> None:
    replica, model = made(kind)
    found = [g.to_dense() if g.is_sparse else g for g in backward(model) if g is not None]
    replica.compute(None, 0)
    assert replica.grad_sq() == pytest.approx(sum(float(g.square().sum()) for g in found), rel=1e-6)
    assert replica.tensor_norms() == pytest.approx(sum(float(g.norm()) for g in found), rel=1e-6)


def test_the_norm_of_many_and_of_long_vectors_is_exact_to_six_digits() -> None:
    generator = torch.Generator().manual_seed(1)
    parts = [torch.randn(size, generator=generator) for size in (1, 3, 1 << 18, (1 << 18) + 1, 3_000_000)]
    expected = sum(float(part.double().square().sum()) for part in parts)
    assert squared_norm_of(parts) == pytest.approx(expected, rel=1e-5)
    assert squared_norm_of([]) == 0


@pytest.mark.parametrize(("kind", "gathers"), [("local_sgd", False), ("selsync", False), ("bsp", True)])
def test_gradients_stay_where_they_are_unless_a_round_carries_them(kind: str, gathers: bool) -> None:
    replica, model = made(kind)
    before = backward(model)
    replica.compute(None, 0)
    assert bool(replica.grad.any()) == gathers
    assert all(p.grad is g for p, g in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_a_gradient_that_is_not_finite_is_named(kind: str) -> None:
    replica, model = made(kind)
    backward(model)
    replica.compute(None, 0)
    assert replica.non_finite_gradient() is None
    gradient = dict(model.named_parameters())["1.bias"].grad
    assert gradient is not None
    gradient[1] = float("nan")
    replica.compute(None, 0)
    assert not math.isfinite(replica.grad_sq())
    assert replica.non_finite_gradient() == "1.bias"


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_that_is_over_has_no_gradient(kind: str) -> None:
    replica, model = made(kind)
    backward(model)
    replica.is_resting = True
    replica.compute(None, 0)
    assert replica.grad_sq() == replica.tensor_norms() == 0
    assert replica.non_finite_gradient() is None

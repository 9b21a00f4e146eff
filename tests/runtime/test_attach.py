"""`attach` inside a real Ray Train loop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

STRATEGIES: dict[str, dict[str, Any]] = {
    "bsp": {"kind": "bsp"},
    "selsync": {"kind": "selsync", "delta": 0.05, "warmup_steps": 2},
    "local_sgd": {"kind": "local_sgd", "sync_every": 5},
    "ssp": {"kind": "ssp", "staleness_bound": 2},
}
ONEBIT = {"push": {"kind": "onebit", "chunk": 64}, "pull": {"kind": "onebit", "chunk": 64}}


def loop(config: dict[str, Any]) -> None:
    """An ordinary loop: only the lines with `sync` are raysync's."""
    from actors import attach
    from raysync.address import COORDINATOR
    from raysync.tasks.digits import Digits

    rank = ray.train.get_context().get_world_rank()
    world = ray.train.get_context().get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(rank)  # replicas that differ, until attach makes them one
    digits = Digits()
    model, (pixels, labels) = digits.model(), digits.train_data().tensors
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sync = attach(model, optimizer, strategy=config["strategy"], compression=config["compression"], shards=2)
    losses = []
    for step in range(config["steps"]):
        chosen = torch.randperm(len(labels), generator=torch.Generator().manual_seed(step))[rank::world][:32]
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(pixels[chosen]), labels[chosen])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    held = ray.get(sync._servers[COORDINATOR].progress.remote(-1, 0.0), timeout=30).events
    sync.finish()
    evaluated, targets = digits.eval_data().tensors
    accuracy = float((model(evaluated).argmax(1) == targets).float().mean())
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    found = {"accuracy": accuracy, "losses": losses, "digest": flat.sum().item(), "held": len(held), **sync.metrics}
    Path(config["out"], f"{rank}.json").write_text(json.dumps(found))


def run(tmp_path: Path, strategy: str, steps: int = 80, compression: Any = None) -> list[dict[str, Any]]:
    config = {"strategy": STRATEGIES[strategy], "steps": steps, "compression": compression, "out": str(tmp_path)}
    TorchTrainer(
        loop,
        train_loop_config=config,
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
        run_config=RunConfig(storage_path=str(tmp_path / "train"), name="attached"),
    ).fit()
    return [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("strategy", "compression"),
    [
        ("selsync", ONEBIT),
        *(pytest.param(kind, None, marks=pytest.mark.matrix) for kind in ("bsp", "local_sgd", "ssp")),
    ],
)
def test_a_train_loop_becomes_semi_synchronous(strategy: str, compression: Any, tmp_path: Path, storage: str) -> None:
    found = run(tmp_path, strategy, compression=compression)
    assert found[0]["digest"] == found[1]["digest"], "everybody ends with the same model"
    assert found[0]["accuracy"] > 0.85
    assert found[0]["held"] == 0, "events nobody fetches are not held"
    rounds = found[0]["sync/rounds"]
    assert rounds >= 80 if strategy in ("bsp", "ssp") else rounds < 70
    if compression:
        dense = 4 * 9610 * rounds
        assert found[0]["comm/bytes_up"] < dense / 10


@pytest.mark.matrix
@pytest.mark.filterwarnings("ignore")
def test_bsp_is_what_one_process_does_on_the_joined_batch(tmp_path: Path, storage: str) -> None:
    from raysync.tasks.digits import Digits

    found = run(tmp_path, "bsp", steps=20)
    torch.manual_seed(0)
    digits = Digits()
    model, (pixels, labels) = digits.model(), digits.train_data().tensors
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(20):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(step))
        chosen = torch.cat([order[rank::2][:32] for rank in range(2)])
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(pixels[chosen]), labels[chosen])
        loss.backward()
        optimizer.step()
        joined = (found[0]["losses"][step] + found[1]["losses"][step]) / 2
        assert joined == pytest.approx(float(loss.detach()), rel=1e-4)


def odd_loop(config: dict[str, Any]) -> None:
    """One Train job, several loops: what people do to models and optimizers that attach must take, or refuse."""
    found = {name: make() for name, make in ODD.items()}
    rank = ray.train.get_context().get_world_rank()
    torch.save(found, Path(config["out"], f"{rank}.pt"))


class TwoHeads(torch.nn.Module):
    """Rank 0 uses one head, rank 1 the other; the rest must be made equal."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.norm, self.frozen = torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4)
        self.heads = torch.nn.ModuleList([torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)])
        self.frozen.requires_grad_(False)
        self.register_buffer("count", torch.tensor([rank, 7]))
        self.rank = rank

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.heads[self.rank](self.frozen(self.norm(x)))


def _train(steps: int, strategy: dict[str, Any], scheduled: str = "") -> dict[str, torch.Tensor]:
    import warnings

    from actors import attach

    rank = ray.train.get_context().get_world_rank()
    torch.manual_seed(rank)
    model = TwoHeads(rank)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR
    scheduler = schedule(optimizer, 5, 0.5) if scheduled == "before" else None
    sync = attach(model, optimizer, strategy=strategy)
    scheduler = schedule(optimizer, 5, 0.5) if scheduled == "after" else scheduler
    generator = torch.Generator().manual_seed(10 + rank)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(steps):
            optimizer.zero_grad()
            x = torch.randn(8, 4, generator=generator)
            torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
    sync.finish()
    return {**model.state_dict(), "lr": torch.tensor(optimizer.param_groups[0]["lr"])}


def _sparse() -> dict[str, Any]:
    """A sparse embedding under bsp, whose unused rows and dense mean must agree."""
    from actors import attach

    rank = ray.train.get_context().get_world_rank()
    model = torch.nn.Sequential(torch.nn.Embedding(6, 2, sparse=True), torch.nn.Flatten(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sync = attach(model, optimizer, strategy={"kind": "bsp"})
    for step in range(5):
        optimizer.zero_grad()
        model(torch.tensor([[rank, 2 + (step + rank) % 4]])).sum().backward()
        optimizer.step()
    sync.finish()
    return dict(model.state_dict())


def _closures_and_refusals() -> dict[str, Any]:
    from actors import attach

    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3)
    said: dict[str, Any] = {}

    def refused(name: str, action: Any) -> None:
        try:
            action()
        except Exception as error:
            said[name] = f"{type(error).__name__}: {error}"

    refused("lbfgs in bsp", lambda: attach(model, optimizer, strategy={"kind": "bsp"}))
    refused("budget", lambda: attach(model, optimizer, budget={"steps": 3}))
    refused("scale", lambda: attach(model, optimizer, scale={"max_workers": 8}))
    sync = attach(model, optimizer, strategy={"kind": "local_sgd", "sync_every": 2})
    refused("twice", lambda: attach(model, optimizer))
    x = torch.randn(16, 2, generator=torch.Generator().manual_seed(1))

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        loss.backward()
        return loss

    refused("no closure", lambda: optimizer.step())
    refused("lr", lambda: sync.turn(lr=0.2))
    refused("workers", lambda: sync.turn(workers=1))
    said["knobs"] = sync.turn(sync_every=3).values["sync_every"] if ray.train.get_context().get_world_rank() == 0 else 3
    said["losses"] = [float(optimizer.step(closure)) for _ in range(6)]
    sync.finish()
    said["weight"] = model.weight.detach().clone()
    said["after"] = float(optimizer.step(closure))
    said["moved"] = not torch.equal(model.weight, said["weight"])
    return said


ODD: dict[str, Any] = {
    "bsp": lambda: _train(15, {"kind": "bsp"}),
    "local_sgd": lambda: _train(15, {"kind": "local_sgd", "sync_every": 4}, "after"),
    "gradients": lambda: _train(15, {"kind": "selsync", "aggregate": "gradients", "delta": 0.0}, "before"),
    "sparse": _sparse,
    "closures": _closures_and_refusals,
}


@pytest.mark.timeout(240)
@pytest.mark.filterwarnings("ignore")
def test_what_people_do_to_models_and_optimizers(tmp_path: Path, storage: str) -> None:
    TorchTrainer(
        odd_loop,
        train_loop_config={"out": str(tmp_path)},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
        run_config=RunConfig(storage_path=str(tmp_path / "train"), name="odd"),
    ).fit()
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(2))
    for name in ("bsp", "local_sgd", "gradients", "sparse"):
        for key, value in first[name].items():
            assert torch.equal(value, second[name][key]), f"{name}: {key} differs between the workers"
    assert first["bsp"]["count"].tolist() == [0, 7], "an integer buffer is rank 0's"
    assert float(first["bsp"]["norm.running_mean"].abs().max()) > 0
    assert float(first["local_sgd"]["lr"]) == float(first["gradients"]["lr"]) == pytest.approx(0.1 * 0.5**3)
    said = first["closures"]
    assert "LBFGS evaluates the loss by itself and cannot step with the mean gradient" in said["lbfgs in bsp"]
    assert "budget: attach cannot honour it; it takes inner_state, outer and scale.block_bytes" in said["budget"]
    assert "scale.max_workers: attach cannot honour it" in said["scale"]
    assert "attached already" in said["twice"]
    assert "call optimizer.step(closure)" in said["no closure"]
    assert "the loop's own optimizer has the learning rate" in said["lr"]
    assert "Ray Train decides how many workers there are" in said["workers"]
    assert said["knobs"] == 3
    assert said["losses"][-1] < said["losses"][0]
    assert said["moved"], "a closure after finish still steps"

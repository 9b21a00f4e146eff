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
    from raysync.tasks.digits import Digits

    rank = ray.train.get_context().get_world_rank()
    world = ray.train.get_context().get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(rank)  # replicas that differ, until attach makes them one
    digits = Digits()
    model, (pixels, labels) = digits.model(), digits.train_data().tensors
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.0 if config["strategy"]["kind"] == "ssp" else 0.9
    )
    sync = attach(model, optimizer, strategy=config["strategy"], compression=config["compression"], shards=2)
    losses = []
    for step in range(config["steps"]):
        chosen = torch.randperm(len(labels), generator=torch.Generator().manual_seed(step))[rank::world][:32]
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(pixels[chosen]), labels[chosen])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    sync.finish()
    evaluated, targets = digits.eval_data().tensors
    accuracy = float((model(evaluated).argmax(1) == targets).float().mean())
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    found = {"accuracy": accuracy, "losses": losses, "digest": flat.sum().item(), **sync.metrics}
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
    if strategy != "ssp":  # there everybody ends with what it has read
        assert found[0]["digest"] == found[1]["digest"], "everybody ends with the same model"
    assert found[0]["accuracy"] > 0.85
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

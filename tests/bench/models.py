"""Models as people bring them, through `fit` and `attach` on Ray, beside a plain torch program.

python -m tests.bench models     JSON lines, and the table for RESULTS.md
"""

from __future__ import annotations

import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

import ray
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from actors import fit
from raysync.spec import parse_spec
from tests import models, reference
from tests.bench.local_ray import local_ray
from tests.bench.record import record

BAR = 1e-5


def _fit(name: str, storage: str) -> dict[str, torch.Tensor]:
    spec = parse_spec(
        {
            "name": "model",
            "task": {"kind": "custom", "entrypoint": f"tests.models:{models.TABLE[name].__name__}"},
            "strategy": {"kind": "bsp"},
            "optimizer": {"kind": "sgd", "lr": reference.LR, "momentum": reference.MOMENTUM},
            "data": {"batch_size": reference.BATCH},
            "scale": {"workers": reference.WORKERS},
            "budget": {"steps": reference.STEPS},
            "seed": reference.SEED,
        }
    )
    result = fit(spec, storage_path=storage)
    if result.error is not None:
        raise result.error
    return result.model_state()


def _loop(config: dict[str, Any]) -> None:
    from actors import attach
    from raysync.engine.training.replica import seed_generators

    rank = ray.train.get_context().get_world_rank()
    for name in config["names"]:
        task = models.TABLE[name]()
        batches = reference.Batches(task)
        seed_generators(reference.SEED, "cpu")
        model = task.model()
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.SGD(trained, lr=reference.LR, momentum=reference.MOMENTUM)
        with attach(model, optimizer, strategy={"kind": "bsp"}):
            for step in range(reference.STEPS):
                optimizer.zero_grad()
                batches.loss(model, rank, step).backward()
                optimizer.step()
        torch.save(dict(model.state_dict()), Path(config["out"], f"{name}.{rank}.pt"))


def _attach(names: list[str], folder: Path) -> None:
    TorchTrainer(
        _loop,
        train_loop_config={"names": names, "out": str(folder)},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=reference.WORKERS, use_gpu=False),
        run_config=RunConfig(storage_path=str(folder / "train"), name="models"),
    ).fit()


def main() -> int:
    """Train every model three times; 1 if one of ours differs from plain torch's."""
    warnings.simplefilter("ignore")
    rows, names = [], list(models.TABLE)
    with tempfile.TemporaryDirectory(prefix="rs-") as folder, local_ray(8):
        _attach(names, Path(folder))
        for name in names:
            expected = reference.train(models.TABLE[name]())
            fitted = reference.distance(_fit(name, folder), expected)
            loops = [torch.load(Path(folder, f"{name}.{rank}.pt")) for rank in range(reference.WORKERS)]
            attached = max(reference.distance(loop, expected) for loop in loops)
            record("models", model=name, fit=fitted, attach=attached)
            rows.append((name, fitted, attached))
    print("\n| model | `fit` | `attach` |\n|---|---|---|")
    for name, *distances in rows:
        print(f"| {name} | " + " | ".join("equal" if far < BAR else json.dumps(far) for far in distances) + " |")
    return int(max(max(distances) for _, *distances in rows) >= BAR)

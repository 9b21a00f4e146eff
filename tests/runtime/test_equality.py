"""The same job on Ray and in the simulator ends in the same bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from actors import fit
from raysync.sim import Simulation
from raysync.spec import JobSpec
from tests.jobs import SYNCHRONOUS, job, workload

CODECS: dict[str, dict[str, Any]] = {
    "dense": {},
    "onebit": {"push": {"kind": "onebit", "chunk": 64}, "pull": {"kind": "onebit", "chunk": 64}},
    "topk-int8": {"push": {"kind": "topk", "ratio": 0.2}, "pull": {"kind": "int8"}},
    "qsgd-fp16": {"push": {"kind": "qsgd", "levels": 100}, "pull": {"kind": "fp16"}},
}
VARIANTS = (
    "selsync-gradients",
    "selsync-divergence",
    "fedavg",
    "fedavg-half",
    "local_sgd",
    "diloco",
    "selsync-overlap",
)
"""What differs from its neighbours only in the cores, not on Ray: in the matrix."""
DIGITS = {"kind": "digits", "hidden": [16]}


def spec_for(strategy: str, codec: str, shards: int, link: str, **changes: Any) -> JobSpec:
    scale = {"workers": 2, "shards": shards, "block_bytes": 1024, **changes.pop("scale", {})}
    return job(
        SYNCHRONOUS[strategy],
        task=DIGITS,
        compression=CODECS[codec],
        scale=scale,
        transport=link,
        optimizer={"kind": "sgd", "lr": 0.05, "momentum": 0.9},
        budget={"steps": 12},
        eval={"every": 5},
        **changes,
    )


def simulated(spec: JobSpec) -> dict[str, torch.Tensor]:
    torch.set_num_threads(1)
    simulation = Simulation(spec, workload=workload(spec))
    simulation.run()
    worker = next(iter(simulation.workers.values()))
    return worker.show_model(lambda state: {name: value.clone() for name, value in state.items()})


def _case(index: int, strategy: str, shards: int, link: str) -> Any:
    """Every strategy runs once, links, shards and codecs in turn; the rest of the cross is the matrix."""
    codec = list(CODECS)[(index + shards + (link == "ray")) % len(CODECS)]
    in_slice = strategy not in VARIANTS and (shards, link) == (1 + index // 2 % 2, ("direct", "ray")[index % 2])
    return pytest.param(strategy, codec, shards, link, marks=() if in_slice else pytest.mark.matrix)


CASES = [
    _case(index, strategy, shards, link)
    for index, strategy in enumerate(SYNCHRONOUS)
    for shards in (1, 2)
    for link in ("direct", "ray")
]


@pytest.mark.parametrize(("strategy", "codec", "shards", "link"), CASES)
def test_bits_are_the_simulators(strategy: str, codec: str, shards: int, link: str, storage: str) -> None:
    spec = spec_for(strategy, codec, shards, link)
    result = fit(spec, storage_path=storage)
    assert result.error is None, result.error
    assert result.runs.link == link
    expected = simulated(spec)
    found = result.model_state()
    assert found.keys() == expected.keys()
    told = [
        (record.kind, record.step, record.data) for record in result.records() if record.kind in ("view", "decision")
    ]
    far = {name: float((found[name] - expected[name]).abs().max()) for name in expected}
    assert all(torch.equal(found[name], expected[name]) for name in expected), f"{far}: {told}"


@pytest.mark.parametrize("link", ["direct", pytest.param("ray", marks=pytest.mark.matrix)])
def test_bits_are_the_simulators_with_shards_inside_workers(link: str, storage: str) -> None:
    spec = spec_for("bsp", "onebit", 2, link, scale={"shards_in": "workers"})
    result = fit(spec, storage_path=storage)
    assert result.error is None, result.error
    expected = simulated(spec)
    assert all(torch.equal(result.model_state()[name], expected[name]) for name in expected)

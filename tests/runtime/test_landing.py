"""Rounds that land late, on Ray: arrival decides when one lands, so that runs differ; what all see of a round does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actors import fit
from raysync.spec import parse_spec

STRATEGIES: dict[str, dict[str, Any]] = {
    "local_sgd": {"kind": "local_sgd", "sync_every": 4},
    "diloco": {"kind": "diloco", "sync_every": 6},
    "selsync": {"kind": "selsync", "overlap": True},
}


@pytest.mark.parametrize(
    ("strategy", "link"),
    [
        ("local_sgd", "direct"),
        pytest.param("diloco", "ray", marks=pytest.mark.matrix),
        pytest.param("selsync", "direct", marks=pytest.mark.matrix),
    ],
)
def test_every_worker_sees_the_same_rounds(strategy: str, link: str, storage: str, tmp_path: Path) -> None:
    spec = parse_spec(
        {
            "task": {"kind": "custom", "entrypoint": "tests.witness:Witness", "args": {"folder": str(tmp_path)}},
            "strategy": {**STRATEGIES[strategy], "landing": "late"},
            "compression": {"push": {"kind": "onebit", "chunk": 64}, "pull": {"kind": "int8", "chunk": 64}},
            "optimizer": {"kind": "sgd", "lr": 0.01},
            "data": {"batch_size": 8},
            "scale": {"workers": 2, "shards": 2, "block_bytes": 1024},
            "budget": {"steps": 80},
            "eval": {"every": 10},
            "transport": {"kind": link, "latency_ms": 5},
        }
    )
    result = fit(spec, storage_path=storage)
    assert result.error is None, result.error
    told = [event.data for event in result.records() if event.kind == "metrics"]
    assert max(data.get("staleness/max", 0) for data in told) >= 1, "some rounds must really land late"
    seen = [file.read_text().split() for file in sorted(tmp_path.glob("*.seen"))]
    assert len(seen) == 2
    judged = [list(dict.fromkeys(digests)) for digests in seen]
    common = min(map(len, judged)) - 1
    assert common >= 5
    assert judged[0][:common] == judged[1][:common]
    assert abs(len(judged[0]) - len(judged[1])) <= 2, "the last round before the end, and the final model"

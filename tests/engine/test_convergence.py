"""DoubleSqueeze on real training: compressed both ways as good as uncompressed, and only with error feedback."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest

from raysync.sim import SimResult, Simulation
from tests.jobs import job, workload

pytestmark = pytest.mark.xdist_group("convergence")  # one process trains each job once

BAR = 0.005
"""Half a point of accuracy."""
CODECS: dict[str, dict[str, Any]] = {"onebit": {"kind": "onebit"}, "topk": {"kind": "topk", "ratio": 0.01}}


@lru_cache(maxsize=8)
def _train(delta: float | None, codec: str | None, error_feedback: bool = True) -> SimResult:
    compression = (
        {} if codec is None else {"push": CODECS[codec], "pull": CODECS[codec], "error_feedback": error_feedback}
    )
    spec = job(
        {"kind": "bsp"} if delta is None else {"kind": "selsync", "delta": delta},
        task={"kind": "digits"},
        compression=compression,
        optimizer={"kind": "sgd", "lr": 0.3},
        lr_schedule={"kind": "cosine", "final_ratio": 0.05},
        data={"batch_size": 32},
        budget={"steps": 1000},
        eval={"every": 1000},
        seed=7,
        scale={"workers": 4, "shards": 2, "block_bytes": 524288},
    )
    return Simulation(spec, workload=workload(spec)).run()


@pytest.mark.parametrize("codec", CODECS)
def test_doublesqueeze_matches_uncompressed_bsp(codec: str) -> None:
    dense, squeezed, control = _train(None, None), _train(None, codec), _train(None, codec, error_feedback=False)
    bar = dense.metrics["eval/accuracy"] - BAR
    assert squeezed.metrics["eval/accuracy"] >= bar
    assert control.metrics["eval/accuracy"] < bar, "without error feedback the same codec must miss the bar"
    assert squeezed.bytes_up + squeezed.bytes_down < 0.04 * (dense.bytes_up + dense.bytes_down)


@pytest.mark.parametrize(("codec", "delta"), [("onebit", 0.3), ("topk", 0.1)])
def test_selsync_with_doublesqueeze_needs_a_hundredth_of_the_bytes(codec: str, delta: float) -> None:
    """The sparser the codec, the more rounds it needs to get everything across: 1 % of the elements wants a smaller delta."""
    dense, squeezed = _train(None, None), _train(delta, codec)
    assert squeezed.metrics["eval/accuracy"] >= dense.metrics["eval/accuracy"] - BAR
    assert squeezed.bytes_up + squeezed.bytes_down <= 0.01 * (dense.bytes_up + dense.bytes_down)
    assert squeezed.lssr >= 0.5

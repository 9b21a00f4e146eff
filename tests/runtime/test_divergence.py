"""What goes wrong in user code on a real Ray: numbers that are not finite, and a step that does not end."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors import fit
from raysync.events import StateChange, StuckStep
from raysync.spec import parse_spec

TASK = """
import pathlib, time
import torch
from torch.utils.data import TensorDataset

class Steep:
    '''A parabola so steep that the first two learning rates diverge on it; one process sleeps once.'''
    def __init__(self, marker):
        self.marker, self.calls = pathlib.Path(marker), 0
    def model(self):
        return torch.nn.Linear(1, 1, bias=False)
    def train_data(self):
        return TensorDataset(torch.ones(64, 1), torch.zeros(64, 1))
    eval_data = train_data
    def loss(self, model, batch):
        self.calls += 1
        time.sleep(0.03)
        if self.calls == 8 and not self.marker.exists():
            self.marker.touch()
            time.sleep(6.5)
        return 5.0 * model(batch[0]).square().mean()
"""


@pytest.mark.timeout(240)
def test_a_job_that_diverges_goes_back_and_a_step_that_hangs_is_told_of(tmp_path: Path, storage: str) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "my_steep.py").write_text(TASK)
    spec = parse_spec(
        {
            "task": {"kind": "custom", "entrypoint": "my_steep:Steep", "args": {"marker": str(tmp_path / "slept")}},
            "scale": {"workers": 2, "cpus_per_worker": 0.5},
            "optimizer": {"kind": "sgd", "lr": 0.5},
            "budget": {"steps": 80},
            "eval": {"every": 40},
            "checkpoint": {"every_rounds": 10},
            "on_divergence": "rollback",
        }
    )
    result = fit(spec, storage_path=storage, runtime_env={"working_dir": str(tmp_path / "code")})
    assert result.error is None, result.error
    bodies = [(record, record.body) for record in result.records()]
    back = [
        body.reason for _, body in bodies if isinstance(body, StateChange) and "half the learning rate" in body.reason
    ]
    assert [reason.rpartition(", ")[2] for reason in back] == ["time 1", "time 2"]
    assert all("the loss is" in reason and "step" in reason for reason in back)
    turned = [record.data for record, _ in bodies if record.kind == "knobs"]
    assert [data["after"] for data in turned] == [{"lr": 0.25}, {"lr": 0.125}]
    (weight,) = result.model_state().values()
    assert abs(float(weight)) < 1e-3
    (stuck,) = [body for _, body in bodies if isinstance(body, StuckStep)]
    assert stuck.who in ("worker 0", "worker 1")
    assert 5.0 < stuck.for_s < 7.5
    assert stuck.usual_s is not None
    assert stuck.usual_s < 1.0
    assert stuck.step == 6, "the eighth call of its loss: one was for the evaluation at step 0"
    assert "my_steep.py" in stuck.where
    assert "time.sleep(6.5)" in stuck.where

"""The built-in tasks: their data, their errors."""

from __future__ import annotations

import gzip
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from raysync.errors import TaskError
from raysync.tasks import MNIST, CharLM, Custom, Digits, Quadratic
from raysync.tasks.mnist import read_idx
from raysync.tasks.workload import Part, Workload


def _idx(array: np.ndarray) -> bytes:
    return (
        b"\0\0\x08"
        + bytes([array.ndim])
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.astype(np.uint8).tobytes()
    )


@pytest.fixture
def mnist_folder(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    for part, count in (("train", 60), ("t10k", 20)):
        labels = generator.integers(0, 10, count)
        images = generator.integers(0, 255, (count, 4, 5))
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(_idx(images))
        (tmp_path / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(_idx(labels)))
    return tmp_path


def test_mnist_reads_plain_and_gzipped_files(mnist_folder: Path) -> None:
    workload = Workload(MNIST(folder=str(mnist_folder), hidden=(8,)).build())
    assert (workload.num_samples, len(workload.eval_data)) == (60, 20)
    assert set(workload.evaluate(workload.task.model())) == {"eval/loss", "eval/accuracy"}
    assert workload.batch(np.arange(3))[0].shape == (3, 20)
    assert Workload(MNIST(folder=str(mnist_folder), limit=7).build()).num_samples == 7


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "not an IDX file"),
        (b"\x89PNG....", "not an IDX file"),
        (b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0", "not an IDX file"),
        (_idx(np.zeros(9))[:-1], "needs 9"),
        (b"\0\0\x08\x01\xff\xff\xff\xff", "needs 4294967295"),
    ],
)
def test_broken_idx_files_are_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "broken").write_bytes(content)
    with pytest.raises(TaskError, match=problem):
        read_idx(tmp_path / "broken")
    (tmp_path / "broken.gz").write_bytes(b"\x1f\x8b" + content)
    with pytest.raises(TaskError, match="cannot be read"):
        read_idx(tmp_path / "broken.gz")


def test_mnist_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"train-images-idx3-ubyte.*set task\.folder"):
        MNIST(folder=str(tmp_path)).train_data()


def test_quadratic_is_analytic() -> None:
    task = Quadratic(dim=5, samples=40, condition=10.0)
    workload = Workload(task.build())
    samples = workload.batch(np.arange(40))[0]
    model = task.model()
    model.get_parameter("w").data.copy_(samples.mean(dim=0))
    loss = task.loss(model, (samples,))
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(model.get_parameter("w").grad.abs().max()) < 1e-6, "the mean of the samples is the minimum"  # type: ignore[union-attr]
    assert task.metrics(model, (samples,))["distance"] < 1e-6


def test_char_lm_reads_a_file_and_the_standard_library(tmp_path: Path) -> None:
    text = tmp_path / "corpus.txt"
    text.write_bytes(bytes(range(256)) * 20)
    workload = Workload(CharLM(context=16, width=16, heads=2, depth=1, corpus=str(text)).build())
    (window,) = workload.batch(np.array([0]))
    assert window[0].tolist() == list(range(17))
    assert Workload(CharLM(corpus_bytes=50_000, context=32).build()).num_samples > 1000
    with pytest.raises(TaskError, match=r"set task\.corpus"):
        CharLM(corpus=str(tmp_path / "absent")).train_data()
    with pytest.raises(TaskError, match="too short"):
        CharLM(corpus=str(text), context=6000).train_data()


def test_char_lm_sees_no_future() -> None:
    model = CharLM(width=16, heads=2, depth=2, context=8).model().eval()
    tokens = torch.arange(8).view(1, 8)
    changed = tokens.clone()
    changed[0, 5] = 99
    before, after = model(tokens), model(changed)
    assert torch.equal(before[0, :5], after[0, :5])
    assert not torch.equal(before[0, 5:], after[0, 5:])


CUSTOM = """
import torch
from torch import nn

class Tiny:
    def __init__(self, width=3): self.width = width
    def model(self): return nn.Linear(self.width, 1)
    def train_data(self): return [(torch.ones(self.width), torch.ones(1))] * 16
    def eval_data(self): return self.train_data()
    def loss(self, model, batch): return (model(batch[0]) - batch[1]).square().mean()

def broken(): return object()
not_callable = 3
"""


def test_custom_task_is_built_from_its_entrypoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny_task.py").write_text(CUSTOM)
    monkeypatch.syspath_prepend(str(tmp_path))
    workload = Workload(Custom(entrypoint="tiny_task:Tiny", args={"width": 5}).build())
    assert workload.batch(np.arange(2))[0].shape == (2, 5)
    assert workload.evaluate(workload.task.model())["eval/loss"] > 0
    for entrypoint, problem in (
        ("tiny_task:Nope", "no callable"),
        ("tiny_task:not_callable", "no callable"),
        ("absent_module:x", "cannot be imported"),
        ("tiny_task:broken", "without model, train_data"),
    ):
        with pytest.raises(TaskError, match=problem):
            Custom(entrypoint=entrypoint).build()
    sys.modules.pop("tiny_task")


def test_metrics_may_be_tensors_and_what_is_no_number_is_named() -> None:
    class Mine(Quadratic):
        def metrics(self, model: Any, batch: Any) -> Any:
            return {"tensor": torch.tensor(0.5), "numpy": np.float32(0.25), **extra}

    extra: dict[str, Any] = {}
    load = Workload(Mine(dim=3, samples=8))
    found = load.evaluate(load.task.model())
    assert (found["eval/tensor"], found["eval/numpy"]) == (0.5, 0.25)
    assert all(type(value) is float for value in found.values())
    extra["mine"] = torch.ones(3)
    with pytest.raises(TaskError, match="'mine' of the evaluation is a Tensor"):
        load.evaluate(load.task.model())


def test_loss_and_metrics_of_one_forward_pass() -> None:
    passes: list[int] = []

    class Counted(torch.nn.Linear):
        def forward(self, inputs: Any) -> Any:
            passes.append(len(inputs))
            return super().forward(inputs)

    class Mine(Digits):
        def model(self) -> Any:
            return Counted(64, 10)

    load = Workload(Mine())
    model = load.task.model()
    whole = load.evaluate(model)
    assert passes == [360], "one pass for both"
    inputs, labels = load.eval_data[torch.arange(360)]
    scores = model(inputs).detach()
    assert whole["eval/loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(scores, labels)))
    assert whole["eval/accuracy"] == pytest.approx(float((scores.argmax(dim=1) == labels).float().mean()))


def test_a_subclass_with_a_loss_or_metrics_of_its_own_is_judged_by_them() -> None:
    class OwnLoss(Digits):
        def loss(self, model: Any, batch: Any) -> Any:
            return torch.tensor(7.0)

    class OwnMetrics(Digits):
        def metrics(self, model: Any, batch: Any) -> Any:
            return {"mine": 0.25}

    for task, expected in ((OwnLoss(), {"eval/loss": 7.0}), (OwnMetrics(), {"eval/mine": 0.25})):
        found = Workload(task).evaluate(task.model())
        assert expected.items() <= found.items()
    assert "eval/accuracy" in Workload(OwnLoss()).evaluate(OwnLoss().model())


@pytest.mark.parametrize("found", [{"accuracy": 1.0}, 0.5])
def test_an_evaluate_without_a_loss_is_refused(found: Any) -> None:
    class Mine(Quadratic):
        def evaluate(self, model: Any, batch: Any) -> Any:
            return found

    load = Workload(Mine(dim=3, samples=8))
    with pytest.raises(TaskError, match="a dict with 'loss'"):
        load.evaluate(load.task.model())


@pytest.mark.parametrize("count", [1, 2, 3, 7, 400])
def test_parts_of_the_evaluation_data_make_up_the_whole(count: int) -> None:
    load = Workload(Digits())
    parts = [Part(index, count) for index in range(count)]
    sizes = [len(part.of(360)) for part in parts]
    assert [sample for part in parts for sample in part.of(360)] == [*range(360)]
    assert max(sizes) - min(sizes) <= 1
    model = load.task.model()
    whole, found = load.evaluate(model), [load.evaluate(model, part) for part in parts]
    for name, value in whole.items():
        together = sum(each.get(name, 0.0) * size / 360 for each, size in zip(found, sizes, strict=True))
        assert together == pytest.approx(value, rel=1e-5)

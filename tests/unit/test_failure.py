"""What a person sees of an exception in their own code: their line first, nothing of what lies around it."""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from raysync.errors import TaskError
from raysync.failure import explain
from raysync.tasks.custom import Custom
from raysync.tasks.workload import Workload
from service.cli.progress import headline

CODE = '''
import json
import torch
from torch.utils.data import Dataset


class Odd(Exception):
    """Its arguments do not fit its constructor, so it does not pickle; nor can it be shown."""

    def __init__(self, one, two):
        super().__init__("only one")

    def __str__(self):
        raise KeyError("no words")


class Data(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return {"x": index}["y"]


class Task:
    def __init__(self, broken=""):
        self.broken = broken

    def model(self):
        if self.broken == "model":
            return torch.nn.Linear(2, -1)
        return torch.nn.Linear(2, 1)

    def train_data(self):
        if self.broken == "data":
            return Data()
        return torch.utils.data.TensorDataset(torch.zeros(4, 3))

    eval_data = train_data

    def loss(self, model, batch):
        if self.broken == "long":
            raise ValueError("x" * 1_000_000)
        if self.broken == "odd":
            raise Odd(1, 2)
        if self.broken == "chained":
            try:
                json.loads("{")
            except ValueError as error:
                raise RuntimeError("the labels cannot be read") from error
        if self.broken == "hidden":
            try:
                json.loads("{")
            except ValueError:
                raise RuntimeError("the labels cannot be read") from None
        if self.broken == "note":
            error = RuntimeError("mine")
            error.add_note("look at the data")
            raise error
        return model(batch[0]).sum()
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working_dir as Ray unpacks it."""
    folder = tmp_path / "_ray_pkg_1234"
    folder.mkdir()
    (folder / "my_tasks.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()
    yield folder
    for name in ("my_tasks", "my_broken", "my_team", "my_team.tasks"):
        sys.modules.pop(name, None)


def failed(entrypoint: str, home: str = "", **args: object) -> str:
    """Build and use a task as a worker does; return what is told of the exception."""
    try:
        workload = Workload(Custom(entrypoint=entrypoint, args=args).build())
        workload.task.loss(workload.task.model(), workload.batch(__import__("numpy").arange(2)))
    except Exception as error:
        return explain(error, entrypoint.partition(":")[0], home)
    raise AssertionError("it did not fail")


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(CODE.splitlines(), 1) if text in line)


IN_THE_CODE = [
    # what is broken, the user's line, the function, how the exception's line begins
    ("", "return model(batch[0]).sum()", "loss", "RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
    ("model", "return torch.nn.Linear(2, -1)", "model", "RuntimeError: "),
    ("data", 'return {"x": index}["y"]', "__getitem__", "KeyError: 'y'"),
    ("odd", "raise Odd(1, 2)", "loss", "my_tasks.Odd: (its message cannot be shown: KeyError)"),
    ("note", "raise error", "loss", "RuntimeError: mine"),
]


@pytest.mark.parametrize(("broken", "source", "function", "raised"), IN_THE_CODE, ids=[row[0] for row in IN_THE_CODE])
def test_the_users_own_line_comes_first(folder: Path, broken: str, source: str, function: str, raised: str) -> None:
    told = failed("my_tasks:Task", broken=broken).splitlines()
    assert told[:2] == [f'File "my_tasks.py", line {line_of(source)}, in {function}', f"    {source}"]
    assert told[2].startswith(raised)
    assert not any(str(folder) in line or "raysync/" in line or "/torch/" in line for line in told)
    assert told[-1].endswith("frames of raysync and libraries are left out; the job's log has them)")
    assert len(told) <= 6


def test_a_note_stays_with_its_exception(folder: Path) -> None:
    assert "RuntimeError: mine\nlook at the data\n" in failed("my_tasks:Task", broken="note")


def test_what_led_to_it_is_named_unless_the_user_hides_it(folder: Path) -> None:
    told = failed("my_tasks:Task", broken="chained").splitlines()
    line = line_of("the labels cannot be read")
    assert told[0] == f'File "my_tasks.py", line {line}, in loss'
    assert told[2] == "RuntimeError: the labels cannot be read"
    assert told[3].startswith("caused by json.decoder.JSONDecodeError: Expecting property name")
    assert "caused by" not in failed("my_tasks:Task", broken="hidden")


def test_a_very_long_message_is_cut(folder: Path) -> None:
    told = failed("my_tasks:Task", broken="long")
    assert len(told) < 2500
    assert "998000 characters more; the job's log has them" in told


def test_what_does_not_pickle_is_told_as_text(folder: Path) -> None:
    assert pickle.loads(pickle.dumps(failed("my_tasks:Task", broken="odd")))


def test_arguments_that_do_not_fit_the_constructor(folder: Path) -> None:
    told = failed("my_tasks:Task", borken="loss")
    assert told.startswith("TaskError: task my_tasks:Task: task.args do not fit it: got an unexpected keyword argument")
    assert "it is called as my_tasks:Task(broken='')" in told
    assert 'File "' not in told


@pytest.mark.parametrize(
    ("code", "first", "words"),
    [
        ("def loss(:\n    pass\n", 'File "my_broken.py", line 1', ["    def loss(:", "SyntaxError: "]),
        ("x = 1\nimport not_there\n", 'File "my_broken.py", line 2', ["    import not_there", "cannot be imported"]),
        ("x = 1\ny = x / 0\n", 'File "my_broken.py", line 2', ["    y = x / 0", "ZeroDivisionError: division by zero"]),
    ],
)
def test_a_module_that_cannot_be_imported(folder: Path, code: str, first: str, words: list[str]) -> None:
    (folder / "my_broken.py").write_text(code)
    told = failed("my_broken:Task")
    assert told.splitlines()[0] == first
    assert all(word in told for word in words), told
    assert "caused by" not in told, "what is said already is not said twice"


def test_a_module_that_is_not_there_is_a_sentence(folder: Path) -> None:
    told = failed("nowhere:Task")
    assert told.startswith("TaskError: task nowhere:Task: cannot be imported (No module named 'nowhere')")
    assert 'File "' not in told


def test_a_users_module_may_be_installed_among_the_libraries(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = folder.parent / "lib" / "site-packages"
    (site / "my_team").mkdir(parents=True)
    (site / "my_team" / "__init__.py").touch()
    (site / "my_team" / "tasks.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(site))
    told = failed("my_team.tasks:Task", home=str(site))
    assert told.splitlines()[0] == f'File "my_team/tasks.py", line {line_of("return model(batch[0])")}, in loss'


def test_a_defect_of_raysyncs_says_where() -> None:
    try:
        Workload(None).train_data  # type: ignore[arg-type]  # noqa: B018
    except AttributeError as error:
        told = explain(error)
    assert "raysync/tasks/workload.py" in told.splitlines()[0]
    assert "AttributeError" in told


def test_a_refusal_of_raysyncs_is_a_sentence() -> None:
    assert explain(TaskError("x", "train_data() is empty")) == "TaskError: task x: train_data() is empty"


def test_the_headline_has_exception_and_place(folder: Path) -> None:
    reason = "worker/0: " + failed("my_tasks:Task", broken="note")
    assert headline(reason) == f"worker/0: RuntimeError: mine (my_tasks.py, line {line_of('raise error')})"

"""`custom`: the user's own class, named by an entrypoint and imported only where it is built: in a worker."""

from __future__ import annotations

import importlib
from typing import Any, ClassVar, Literal, cast

from pydantic import Field

from raysync.errors import TaskError
from raysync.tasks.base import Task, TaskSpec

_REQUIRED = ("model", "train_data", "eval_data", "loss")


class Custom(TaskSpec):
    """`entrypoint` names a callable, "package.module:name"; called with `args` it returns a task."""

    kind: Literal["custom"] = "custom"
    metric_names: ClassVar[tuple[str, ...] | None] = None
    has_labels: ClassVar[bool] = True
    entrypoint: str = Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$")
    args: dict[str, Any] = Field(default_factory=dict)

    def build(self) -> Task:
        module_name, name = self.entrypoint.split(":")
        try:
            module = importlib.import_module(module_name)
        except ImportError as error:
            raise TaskError(
                self.entrypoint, f"cannot be imported ({error}); is its package installed or in the job's working_dir?"
            ) from error
        make = getattr(module, name, None)
        if not callable(make):
            raise TaskError(self.entrypoint, f"module {module_name} has no callable {name!r}")
        task = make(**self.args)
        missing = [method for method in _REQUIRED if not callable(getattr(task, method, None))]
        if missing:
            raise TaskError(
                self.entrypoint,
                f"returned a {type(task).__name__} without {', '.join(missing)}; a task has {', '.join(_REQUIRED)}",
            )
        return cast(Task, task)

"""`custom`: the user's own class, named by an entrypoint and imported only where it is built: in a worker."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import Field

from raysync.errors import TaskError
from raysync.tasks.base import Task, TaskSpec
from raysync.value import Shape

_REQUIRED = ("model", "train_data", "eval_data", "loss")


class Custom(TaskSpec):
    """`entrypoint` names a callable, "package.module:name"; called with `args` it returns a task."""

    kind: Literal["custom"] = "custom"
    metric_names: ClassVar[tuple[str, ...] | None] = None
    has_labels: ClassVar[bool] = True
    entrypoint: Annotated[
        str,
        Shape(
            r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*",
            "an entrypoint is a module, a colon and a name in it, such as my_package.my_module:MyTask",
        ),
    ]
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
        task = make(**self._checked_args(make))
        missing = [method for method in _REQUIRED if not callable(getattr(task, method, None))]
        if missing:
            raise TaskError(
                self.entrypoint,
                f"returned a {type(task).__name__} without {', '.join(missing)}; a task has {', '.join(_REQUIRED)}",
            )
        return cast(Task, task)

    def _checked_args(self, make: Callable[..., Any]) -> dict[str, Any]:
        """Return `args` if `make` takes them; a callable that tells nothing of itself is tried."""
        try:
            signature = inspect.signature(make)
        except (TypeError, ValueError):
            return self.args
        try:
            signature.bind(**self.args)
        except TypeError as error:
            raise TaskError(
                self.entrypoint, f"task.args do not fit it: {error}; it is called as {self.entrypoint}{signature}"
            ) from None
        return self.args

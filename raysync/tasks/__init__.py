"""What is trained. To add a task: write `raysync/tasks/<kind>.py` and name it in the union below."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from raysync.tasks.base import MapDataset, Task, TaskSpec
from raysync.tasks.char_lm import CharLM
from raysync.tasks.custom import Custom
from raysync.tasks.digits import Digits
from raysync.tasks.mnist import MNIST
from raysync.tasks.quadratic import Quadratic

AnyTask = Annotated[Quadratic | Digits | MNIST | CharLM | Custom, Field(discriminator="kind")]

__all__ = ["MNIST", "AnyTask", "CharLM", "Custom", "Digits", "MapDataset", "Quadratic", "Task", "TaskSpec"]

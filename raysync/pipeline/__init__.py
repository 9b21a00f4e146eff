"""Pipeline schedules. To add one: write `raysync/pipeline/<kind>.py` and name it in the union below."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from raysync.pipeline.async_one_f_one_b import AsyncOneFOneB
from raysync.pipeline.base import Schedule
from raysync.pipeline.gpipe import GPipe
from raysync.pipeline.one_f_one_b import OneFOneB

AnySchedule = Annotated[GPipe | OneFOneB | AsyncOneFOneB, Field(discriminator="kind")]

__all__ = ["AnySchedule", "AsyncOneFOneB", "GPipe", "OneFOneB", "Schedule"]

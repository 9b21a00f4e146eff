"""`gpipe`: all forward passes, then all backward passes, then one step (Huang et al. 2019)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from raysync.pipeline.base import Op, Schedule, alternate


class GPipe(Schedule):
    """All forward passes, then all backward passes, then one step."""

    kind: Literal["gpipe"] = "gpipe"

    def order(self, stage: int, stages: int, count: int | None) -> Iterator[Op]:
        return alternate(count or 0, count, steps_each=False)

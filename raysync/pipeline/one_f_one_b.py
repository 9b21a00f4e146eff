"""`one_f_one_b`: one forward, one backward pass in turn, after a warm-up that fills the pipeline; one step at the end.

The same gradients as `gpipe` with fewer live activations: P - s microbatches on stage s instead of all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from raysync.pipeline.base import Op, Schedule, alternate


class OneFOneB(Schedule):
    """One forward, one backward pass in turn, one step at the end."""

    kind: Literal["one_f_one_b"] = "one_f_one_b"

    def order(self, stage: int, stages: int, count: int | None) -> Iterator[Op]:
        return alternate(stages - 1 - stage, count, steps_each=False)

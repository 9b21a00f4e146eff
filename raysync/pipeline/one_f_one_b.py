"""`one_f_one_b`: one forward, one backward, after a warm-up that fills the pipeline."""

from __future__ import annotations

from typing import Literal

from raysync.pipeline.base import Schedule


class OneFOneB(Schedule):
    """One forward, one backward, after a warm-up that fills the pipeline."""

    kind: Literal["one_f_one_b"] = "one_f_one_b"

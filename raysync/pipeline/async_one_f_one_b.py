"""`async_one_f_one_b`: one forward, one backward, an optimizer step after every microbatch."""

from __future__ import annotations

from typing import Literal

from raysync.pipeline.base import Schedule


class AsyncOneFOneB(Schedule):
    """One forward, one backward, an optimizer step after every microbatch."""

    kind: Literal["async_one_f_one_b"] = "async_one_f_one_b"

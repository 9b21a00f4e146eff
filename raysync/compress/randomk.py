"""`randomk`: a random subset drawn from a shared seed, without indices on the wire."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from raysync.compress.base import Compressor


class RandomK(Compressor):
    """Keeps a random share of the elements."""

    kind: Literal["randomk"] = "randomk"
    number: ClassVar[int] = 6
    ratio: float = Field(gt=0, le=1)
    unbiased: bool = False

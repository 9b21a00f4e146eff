"""`topk`: the largest elements by magnitude."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from raysync.compress.base import Compressor


class TopK(Compressor):
    """Keeps a share of the elements."""

    kind: Literal["topk"] = "topk"
    number: ClassVar[int] = 5
    ratio: float = Field(gt=0, le=1)
    values: Literal["fp16", "fp32"] = "fp16"

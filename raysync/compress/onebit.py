"""`onebit`: the signs, and one scale per chunk."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from raysync.compress.base import Compressor


class OneBit(Compressor):
    """1 bit per element; the scale is the chunk's RMS or mean magnitude."""

    kind: Literal["onebit"] = "onebit"
    number: ClassVar[int] = 4
    scale: Literal["rms", "mean_abs"] = "rms"
    chunk: int = Field(default=4096, ge=8, le=1 << 20)

"""`int8`: 8-bit integers with one scale per chunk."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from raysync.compress.base import Compressor


class Int8(Compressor):
    """Maps each chunk onto -127 .. 127."""

    kind: Literal["int8"] = "int8"
    number: ClassVar[int] = 3
    rounding: Literal["stochastic", "nearest"] = "stochastic"
    chunk: int = Field(default=4096, ge=8, le=1 << 20)

"""`qsgd`: stochastic levels of the chunk's norm."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from raysync.compress.base import Compressor


class QSGD(Compressor):
    """Quantised SGD (Alistarh et al. 2017)."""

    kind: Literal["qsgd"] = "qsgd"
    number: ClassVar[int] = 7
    levels: int = Field(default=4, ge=1, le=127)
    chunk: int = Field(default=4096, ge=8, le=1 << 20)

"""`fp16`: half precision, 16 bits per element."""

from __future__ import annotations

from typing import ClassVar, Literal

from raysync.compress.base import Compressor


class FP16(Compressor):
    """Rounds to the nearest half-precision number."""

    kind: Literal["fp16"] = "fp16"
    number: ClassVar[int] = 1

"""`fp16`: half precision, 16 bits per element, 11 of them significant."""

from __future__ import annotations

from typing import ClassVar, Literal

from raysync.compress.half import Half


class FP16(Half):
    """Rounds to the nearest half-precision number; the range ends at 65504."""

    kind: Literal["fp16"] = "fp16"
    number: ClassVar[int] = 1
    dtype_name: ClassVar[str] = "float16"
    largest: ClassVar[float] = 65504.0

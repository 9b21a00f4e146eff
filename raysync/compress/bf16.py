"""`bf16`: bfloat16, 16 bits per element, 8 of them significant, with the range of fp32."""

from __future__ import annotations

from typing import ClassVar, Literal

from raysync.compress.half import Half


class BF16(Half):
    """Rounds to the nearest bfloat16."""

    kind: Literal["bf16"] = "bf16"
    number: ClassVar[int] = 2
    dtype_name: ClassVar[str] = "bfloat16"
    largest: ClassVar[float] = 3.3895313892515355e38

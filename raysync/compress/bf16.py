"""`bf16`: bfloat16, 16 bits per element, fp32's range."""

from __future__ import annotations

from typing import ClassVar, Literal

from raysync.compress.base import Compressor


class BF16(Compressor):
    """Rounds to the nearest bfloat16."""

    kind: Literal["bf16"] = "bf16"
    number: ClassVar[int] = 2

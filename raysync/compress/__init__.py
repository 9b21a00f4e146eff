"""What goes on the wire. To add a codec: write `raysync/compress/<kind>.py` and name it in the union below."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from raysync.compress.base import Compressor
from raysync.compress.bf16 import BF16
from raysync.compress.fp16 import FP16
from raysync.compress.identity import Identity
from raysync.compress.int8 import Int8
from raysync.compress.onebit import OneBit
from raysync.compress.qsgd import QSGD
from raysync.compress.randomk import RandomK
from raysync.compress.topk import TopK

AnyCodec = Annotated[Identity | FP16 | BF16 | Int8 | OneBit | TopK | RandomK | QSGD, Field(discriminator="kind")]

__all__ = ["BF16", "FP16", "QSGD", "AnyCodec", "Compressor", "Identity", "Int8", "OneBit", "RandomK", "TopK"]

"""A codec turns one block of fp32 numbers into self-contained bytes and back; it is a frozen value and never
communicates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from raysync.errors import PayloadError
from raysync.value import Value

if TYPE_CHECKING:
    from torch import Tensor


class Compressor(Value):
    """The family of codecs. Encoding is configured by the value; decoding needs only the bytes, so it belongs to
    the class.
    """

    kind: str
    number: ClassVar[int]
    """How payloads on the wire name this codec; never reused."""
    lossless: ClassVar[bool] = False
    """True where decoding gives back every bit, so no residual needs to be kept."""

    def encode(self, x: Tensor, seed: int) -> bytes:
        """Return the bytes for the one-dimensional fp32 tensor `x`; equal arguments give equal bytes."""
        raise NotImplementedError

    @classmethod
    def decode(cls, payload: bytes) -> Tensor:
        """Return the fp32 tensor the bytes stand for; raise `PayloadError` for anything `encode` cannot have made."""
        raise NotImplementedError

    @classmethod
    def decode_add(cls, payload: bytes, out: Tensor, weight: float = 1.0) -> None:
        """Add `weight` times the decoded payload to `out` in place."""
        decoded = cls.decode(payload)
        if len(decoded) != len(out):
            raise PayloadError(f"it holds {len(decoded)} elements, the block has {len(out)}")
        out.add_(decoded, alpha=weight)

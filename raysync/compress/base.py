"""A codec turns one block of fp32 numbers into self-contained bytes and back; it is a frozen value and never
communicates.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from raysync.errors import PayloadError
from raysync.value import Value

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor


_FEW = 4096
"""Elements that are enough to run every kernel."""


class Compressor(Value):
    """The family of codecs. Encoding is configured by the value; decoding needs only the bytes, so it belongs to
    the class. A member defines `squeeze` and `decode`.
    """

    kind: str
    number: ClassVar[int]
    """How payloads on the wire name this codec; never reused."""
    lossless: ClassVar[bool] = False
    """True where decoding gives back every bit, so no residual needs to be kept."""

    @property
    def error_bound(self) -> float:
        """A bound on E|v - decode(v)|^2 / |v|^2 that reaches 1 where error feedback makes residuals grow; else 0."""
        return 0.0

    def prepare(self) -> None:
        """Have all that this codec runs on the CPU imported and compiled now, not in the first round.

        Kernels are compiled for kinds of arrays: payloads that arrive in one piece are read-only, those put together
        from parts are not.
        """
        import torch

        numbers, out = torch.linspace(-1, 1, _FEW), torch.zeros(_FEW)
        payload = self.squeeze(numbers, out, 0)
        self.decode(payload)
        for arrived in (payload, memoryview(bytearray(payload))):
            self.decode_add(arrived, out, 0.5)  # type: ignore[arg-type]

    def encode(self, x: Tensor, seed: int) -> bytes:
        """Return the bytes for the one-dimensional fp32 tensor `x`; equal arguments give equal bytes.

        Zeros count as positive, whatever their sign.
        """
        import torch

        return self.squeeze(x, torch.zeros_like(x, memory_format=torch.contiguous_format), seed)

    def squeeze(self, update: Tensor, residual: Tensor, seed: int) -> bytes:
        """Return the bytes for v = update + residual, and leave v - decode(bytes) in `residual`.

        Raise `PayloadError`, with the residual as it was, if v holds a NaN or an infinity.
        """
        raise NotImplementedError

    @classmethod
    def decode(cls, payload: bytes, size: int | None = None) -> Tensor:
        """Return the fp32 tensor the bytes stand for; raise `PayloadError` for anything `squeeze` cannot have made.

        Give the `size` you expect, and no more than that is ever allocated.
        """
        raise NotImplementedError

    @classmethod
    def decode_add(cls, payload: bytes, out: Tensor, weight: float = 1.0) -> None:
        """Add `weight` times the decoded payload to `out` in place."""
        out.add_(cls.decode(payload, len(out)).to(out.device), alpha=weight)


def contiguous(tensor: Tensor) -> NDArray[np.float32]:
    """Return a CPU tensor's numbers as a flat array, without a copy where they already lie in a row."""
    array: NDArray[np.float32] = tensor.detach().contiguous().numpy()
    return array


def all_finite(tensor: Tensor) -> bool:
    """Return whether no element is NaN or infinite."""
    # A finite sum has finite terms; only a sum that overflows needs a second look.
    return math.isfinite(float(tensor.sum())) or all(bool(bound.isfinite()) for bound in tensor.aminmax())


def refuse_non_finite(position: int | None = None) -> PayloadError:
    """Return the error for a NaN or an infinity among the numbers to encode."""
    where = "" if position is None else f" near element {position}"
    return PayloadError(
        f"a NaN or an infinity{where} cannot be sent: look at the loss, lower the learning rate, or clip"
    )


def check_size(count: int, size: int | None) -> None:
    """Refuse a payload that announces another number of elements than the receiver expects."""
    if size is not None and count != size:
        raise PayloadError(f"it holds {count} elements, the block has {size}")

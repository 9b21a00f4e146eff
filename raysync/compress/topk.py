"""`topk`: the largest elements by magnitude, their positions as entropy-coded gaps, their values as fp16 or fp32.

Exactly max(1, round(ratio * d)) elements are kept; of equals at the edge, the first. Values are divided by a power
of two before they become fp16, so that no magnitude overflows and in-range values lose nothing but bits 11 and
below. About H(p) + 16 p bits per element, H the binary entropy of the ratio p.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from raysync.compress.base import all_finite, check_size, contiguous, refuse_non_finite
from raysync.compress.entropy import pack_positions, unpack_positions
from raysync.compress.sparse import Sparse
from raysync.compress.wire import pack, unpack
from raysync.errors import PayloadError

if TYPE_CHECKING:
    from torch import Tensor

_START = struct.Struct("<BhII")
"""Bytes per value, exponent of the values' scale, number kept, length of the positions."""
_SAMPLE = 1 << 15
_HEADROOM = 1.25
_SLACK = 256


class TopK(Sparse):
    """Keeps a share of the elements; what is not kept stays in the residual, whole."""

    kind: Literal["topk"] = "topk"
    number: ClassVar[int] = 5
    ratio: float = Field(gt=0, le=1)
    """Share of the elements kept."""
    values: Literal["fp16", "fp32"] = "fp16"

    def prepare(self) -> None:
        super().prepare()
        _exact_edge(np.zeros(1, np.float32), 1)

    def squeeze(self, update: Tensor, residual: Tensor, seed: int) -> bytes:
        if update.is_cuda or not residual.is_contiguous():
            return self._squeeze_torch(update, residual)
        from raysync.compress import kernels

        added, values = contiguous(update), contiguous(residual)
        if not kernels.sum_is_finite(added, values):
            raise refuse_non_finite()
        return self._pack(values, *add_and_select(added, values, self._number_kept(values.size)))

    def _squeeze_torch(self, update: Tensor, residual: Tensor) -> bytes:
        """Do the same in torch operations, on whatever device the tensors are."""
        values = update + residual
        if not all_finite(values):
            raise refuse_non_finite()
        kept = self._number_kept(len(values))
        positions = values.new_empty(0).long()
        if kept:
            magnitudes = values.abs()
            edge = magnitudes.topk(kept, sorted=False).values.min()
            above, at_edge = (magnitudes > edge).nonzero()[:, 0], (magnitudes == edge).nonzero()[:, 0]
            positions = above.new_empty(kept)
            positions[: len(above)], positions[len(above) :] = above, at_edge[: kept - len(above)]
            positions = positions.sort().values
        rest = values.cpu().numpy()
        where = positions.cpu().numpy().astype(np.int32)
        payload = self._pack(rest, where, rest[where])
        residual.copy_(values.new_tensor(rest) if values.is_cuda else values)
        return payload

    def _number_kept(self, count: int) -> int:
        return min(count, max(1, round(self.ratio * count)))

    def _pack(self, values: NDArray[np.float32], positions: NDArray[np.int32], kept: NDArray[np.float32]) -> bytes:
        """Return the payload of the kept values, and take what it carries out of `values`."""
        exponent = 0
        if self.values == "fp16":
            top = float(np.abs(kept).max(initial=0.0))
            exponent = int(np.frexp(np.float32(top))[1]) if top else 0
            sent = _times_power(kept, -exponent).astype("<f2")
        else:
            sent = kept.astype("<f4")
        values[positions] = kept - _restore(sent, exponent)
        gaps = pack_positions(positions)
        start = _START.pack(sent.itemsize, exponent, len(positions), len(gaps))
        return pack(self.number, values.size, start, gaps, sent.tobytes())

    @classmethod
    def _unpack(cls, payload: bytes, size: int | None) -> tuple[int, NDArray[np.int64], NDArray[np.float32]]:
        count, body = unpack(payload, cls.number)
        check_size(count, size)
        if len(body) < _START.size:
            raise PayloadError(f"{len(body)} bytes cannot hold the start of a sparse block")
        width, exponent, kept, length = _START.unpack_from(body)
        if width not in (2, 4) or kept > count or _START.size + length + width * kept != len(body):
            raise PayloadError(f"{len(body)} bytes cannot hold {kept} of {count} values of {width} bytes")
        positions = unpack_positions(body[_START.size : _START.size + length], kept, count)
        values = _restore(np.frombuffer(body[_START.size + length :], f"<f{width}"), exponent)
        if not np.isfinite(values).all():
            raise PayloadError("it holds a NaN or an infinity")
        return count, positions, values


def _restore(sent: NDArray[np.float16] | NDArray[np.float32], exponent: int) -> NDArray[np.float32]:
    return _times_power(sent.astype(np.float32), exponent)


def _times_power(values: NDArray[np.float32], exponent: int) -> NDArray[np.float32]:
    """Return values * 2^exponent; in fp64, which holds every such product, so that only the last step rounds."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        product: NDArray[np.float32] = (values * np.float64(2.0) ** exponent).astype(np.float32)
    return product


def add_and_select(
    update: NDArray[np.float32], residual: NDArray[np.float32], kept: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Add `update` to `residual`; return the `kept` largest magnitudes then in it: positions, ascending, and
    values.

    A sample guesses a magnitude that a few more than `kept` elements reach; only those are looked at closely. Where
    the guess fails, a histogram of the magnitudes' bits finds the edge exactly. Of equals at the edge the first are
    taken.
    """
    from raysync.compress import kernels

    room = int(_HEADROOM * kept) + _SLACK
    candidates, values = np.empty(room, np.int32), np.empty(room, np.float32)
    found = kernels.add_and_gather(update, residual, _guess(update, residual, kept), candidates, values)
    if not kept <= found <= room:
        return _select_exactly(residual, kept)
    magnitudes = np.abs(values[:found])
    edge = np.partition(magnitudes, found - kept)[found - kept] if kept else np.float32(0)
    chosen = magnitudes > edge
    chosen[np.flatnonzero(magnitudes == edge)[: kept - int(chosen.sum())]] = True
    return candidates[:found][chosen], values[:found][chosen]


def _guess(update: NDArray[np.float32], residual: NDArray[np.float32], kept: int) -> np.int32:
    """Return a magnitude, as an integer, that somewhat more than `kept` elements of the sum should reach."""
    stride = max(1, update.size // _SAMPLE)
    sample = np.abs(update[::stride] + residual[::stride])
    wanted = kept / stride
    rank = min(sample.size, int(wanted + 3 * np.sqrt(wanted) + 1))
    edge = np.partition(sample, sample.size - rank)[sample.size - rank] if rank else np.float32(0)
    return np.int32(edge.view(np.int32))


def _select_exactly(values: NDArray[np.float32], kept: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    edge = _exact_edge(values, kept)
    magnitudes = values.view(np.int32) & np.int32(0x7FFFFFFF)
    above = np.flatnonzero(magnitudes > edge)
    at_edge = np.flatnonzero(magnitudes == edge)[: kept - len(above)]
    positions = np.sort(np.concatenate([above, at_edge])).astype(np.int32)
    return positions, values[positions]


def _exact_edge(values: NDArray[np.float32], kept: int) -> int:
    """Return the kept-th largest magnitude, as an integer."""
    from raysync.compress import kernels

    upper = np.zeros(1 << 15, np.int64)
    kernels.magnitude_histogram(values, 16, 0, upper)
    prefix, above = _rank(upper, kept)
    lower = np.zeros(1 << 16, np.int64)
    kernels.magnitude_histogram(values, 0, prefix, lower)
    return (prefix << 16) | _rank(lower, kept - above)[0]


def _rank(counts: NDArray[np.int64], wanted: int) -> tuple[int, int]:
    """Return the highest bin at which the counts from the top reach `wanted`, and the sum of those above it."""
    from_top = np.cumsum(counts[::-1])
    position = int(np.searchsorted(from_top, wanted))
    return len(counts) - 1 - position, int(from_top[position] - counts[::-1][position])

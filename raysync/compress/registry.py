"""Decoding by what the payload says it is: the receiver needs nothing from the sender but the bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from raysync.compress import AnyCodec, Compressor
from raysync.compress.base import check_size
from raysync.compress.wire import codec_of, verify
from raysync.errors import PayloadError

if TYPE_CHECKING:
    from torch import Tensor

CODECS: tuple[type[Compressor], ...] = get_args(get_args(AnyCodec)[0])
"""Every member of the family."""

_BY_NUMBER = {codec.number: codec for codec in CODECS}


def decode(payload: bytes, size: int | None = None) -> Tensor:
    """Return the fp32 tensor a payload of any codec stands for, of `size` elements where that is known."""
    codec = _codec(payload)
    verify(payload)
    return codec.decode(payload, size)


def decode_add(payload: bytes, out: Tensor, weight: float = 1.0) -> None:
    """Add `weight` times what a payload stands for to `out` in place; its length must be `out`'s."""
    codec = _codec(payload)
    verify(payload)
    codec.decode_add(payload, out, weight)


def add_checked(payload: bytes, out: Tensor, weight: float = 1.0) -> None:
    """Do the same with a payload that was made here, or has been through `check`."""
    _codec(payload).decode_add(payload, out, weight)


def check(payload: bytes, size: int) -> None:
    """Raise `PayloadError` unless a payload arrived whole and is for `size` elements; what it holds is not decoded."""
    number, count = verify(payload)
    if number not in _BY_NUMBER:
        _codec(payload)
    check_size(count, size)


def _codec(payload: bytes) -> type[Compressor]:
    number = codec_of(payload)
    if number not in _BY_NUMBER:
        raise PayloadError(f"codec number {number} is not known here: is the sender's raysync newer?")
    return _BY_NUMBER[number]

"""The envelope: what is refused, and that nothing is allocated by a count nobody has checked."""

from __future__ import annotations

import tracemalloc

import pytest
import torch

from raysync.compress import QSGD, Identity, OneBit, RandomK, TopK
from raysync.compress.entropy import pack_bytes
from raysync.compress.registry import decode, decode_add
from raysync.compress.wire import MAX_ELEMENTS, OVERHEAD_BYTES, pack, unpack
from raysync.errors import PayloadError
from tests import fuzz

GOOD = OneBit(chunk=32).encode(torch.arange(100.0) - 50, 0)


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (b"", "fewer than the 16"),
        (GOOD[:15], "fewer than the 16"),
        (b"xx" + GOOD[2:], "not raysync's"),
        (GOOD[:2] + b"\x09" + GOOD[3:], "version 9"),
        (GOOD[:3] + b"\xc8" + GOOD[4:], "codec number 200 is not known"),
        (GOOD[:3] + b"\x05" + GOOD[4:], "checksum"),
        (GOOD[:-1], "its header says"),
        (GOOD + b"\0", "its header says"),
        (GOOD[:-1] + bytes([GOOD[-1] ^ 1]), "checksum"),
        (GOOD[:4] + b"\x65" + GOOD[5:], "checksum"),
        (pack(4, MAX_ELEMENTS + 1, b""), "more than the"),
        (pack(4, 100, b"\x05" + b"\0" * 16 + b"\0" * 12 + b"\xf0"), "behind the last element"),
        (pack(4, 100, b"\x05" + b"\0\0\xc0\x7f" + b"\0" * 12 + b"\0" * 13), "not finite"),
        (pack(4, 100, b"\x40" + b"\0" * 40), "how long its chunks"),
        (pack(0, 2, b"\0" * 7), "cannot hold 2"),
        (pack(0, 1, b"\0\0\xc0\x7f"), "NaN"),
    ],
)
def test_foreign_or_damaged_payloads_are_refused(payload: bytes, problem: str) -> None:
    with pytest.raises(PayloadError, match=problem):
        decode(payload)


def test_payload_names_its_codec_and_length() -> None:
    count, body = unpack(GOOD, OneBit.number)
    assert count == 100
    assert len(GOOD) == OVERHEAD_BYTES + len(body)
    with pytest.raises(PayloadError, match="made by codec number 4, not 5"):
        unpack(GOOD, TopK.number)


@pytest.mark.parametrize(
    "bomb",
    [
        pack(TopK.number, MAX_ELEMENTS, TopK(ratio=0.1).encode(torch.ones(10), 0)[OVERHEAD_BYTES:]),
        pack(RandomK.number, MAX_ELEMENTS, RandomK(ratio=0.1).encode(torch.ones(10), 0)[OVERHEAD_BYTES:]),
        pack(
            QSGD.number,
            MAX_ELEMENTS,
            b"\x09" + b"\0" * (4 * (MAX_ELEMENTS // 512)) + b"\x04" + pack_bytes(b"\0" * 1000),
        ),
        pack(QSGD.number, 1000, b"\x09" + b"\0" * 8 + b"\x04" + pack_bytes(b"\0" * 10_000_000)),
    ],
    ids=["topk", "randomk", "qsgd", "qsgd-frame"],
)
def test_untrusted_counts_allocate_nothing(bomb: bytes) -> None:
    out = torch.zeros(1000)
    tracemalloc.start()
    try:
        for read in (lambda: decode_add(bomb, out), lambda: decode(bomb, 1000)):
            with pytest.raises(PayloadError):
                read()
        assert tracemalloc.get_traced_memory()[1] < 100_000 + len(bomb) // 100
    finally:
        tracemalloc.stop()
    assert float(out.abs().max()) == 0


def test_fuzzed_payloads_give_tensors_or_the_one_error() -> None:
    outcomes = fuzz.run(6000, seed=1)
    assert outcomes["refused"] > 5000
    assert outcomes["decoded"] > 50


def test_identity_sends_every_bit() -> None:
    v = torch.tensor([1e-42, -0.0, 3.4e38, 1.1])
    assert torch.equal(decode(Identity().encode(v, 0)).view(torch.int32), v.view(torch.int32))

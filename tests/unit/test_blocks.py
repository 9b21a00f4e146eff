"""How the vector is cut: by its length alone, so that the cut is the same for every member and for whoever goes on."""

from __future__ import annotations

import pytest
import torch

from actors.link.frames import to_frames
from raysync.address import shard, worker
from raysync.blocks import LARGEST_BYTES, SMALLEST_BYTES, Content, cut
from raysync.compress.in_place import Room
from raysync.engine import messages as m

KIB, MIB = 1 << 10, 1 << 20

CUTS = [
    # bytes of the vector -> blocks, bytes of the largest
    (4, 1, 4),
    (100 * KIB, 1, 100 * KIB),
    (MIB, 2, 512 * KIB),
    (4 * MIB, 8, 512 * KIB),
    (10 * MIB, 8, 1280 * KIB),
    (16 * MIB, 8, 2 * MIB),
    (40 * MIB, 20, 2 * MIB),
    (40 * MIB + 4, 21, 2 * MIB),
]


@pytest.mark.parametrize(("size", "count", "largest"), CUTS)
def test_default_cuts(size: int, count: int, largest: int) -> None:
    blocks = cut([(Content.PARAMETER, size // 4)])
    assert len(blocks) == count
    assert 4 * max(block.size for block in blocks) == largest
    assert sum(block.size for block in blocks) == size // 4
    assert [block.start for block in blocks[1:]] == [block.stop for block in blocks[:-1]]


def test_a_given_size_is_kept_and_roles_are_never_mixed() -> None:
    regions = [(Content.PARAMETER, 25), (Content.BUFFER, 3), (Content.MOMENT, 0)]
    blocks = cut(regions, 40)
    assert [(block.content, block.size) for block in blocks] == [
        (Content.PARAMETER, 10),
        (Content.PARAMETER, 10),
        (Content.PARAMETER, 5),
        (Content.BUFFER, 3),
    ]
    assert len(cut([(Content.PARAMETER, 10**7)], SMALLEST_BYTES)) == 77


def test_the_largest_default_block_travels_in_one_piece() -> None:
    payload = Room().write(torch.zeros(LARGEST_BYTES // 4))
    said = {"view": 1, "sender": worker(0), "block": 0, "round": 1, "participants": None, "weight": 1.0, "lr": 1.0}
    push = m.Push(payload=payload, payload_kind="gradient", **said)
    (frame,) = to_frames(worker(0), shard(0), push)
    assert len(frame.body) == len(payload)

"""The flat vector cut into blocks: by bytes, in order, never across two roles; the cut stays the same for the whole
job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Content(StrEnum):
    """What a stretch of the vector is, which decides how the server combines it."""

    PARAMETER = "parameter"
    """Model parameters: combined by the outer optimizer."""
    BUFFER = "buffer"
    """Floating-point buffers such as BatchNorm statistics: averaged."""
    MOMENT = "moment"
    """State of the workers' own optimizers, where the job averages it: averaged."""


@dataclass(frozen=True)
class Block:
    """A stretch of the flat vector that is encoded, sent and owned as one piece."""

    index: int
    content: Content
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.stop - self.start


SMALLEST_BYTES, LARGEST_BYTES = 512 << 10, 2 << 20
"""Of blocks whose size nobody has given."""


def default_bytes(elements: int) -> int:
    """Return the size of blocks for a vector: an eighth of it, so that work on one hides the way of another; in bounds
    between which neither what is done per block nor the processor's caches weigh much.
    """
    eighth = 4 * -(-elements // 8)
    return min(LARGEST_BYTES, max(SMALLEST_BYTES, eighth))


def cut(regions: Sequence[tuple[Content, int]], block_bytes: int | None = None) -> tuple[Block, ...]:
    """Return the blocks of a vector of `regions` (content, elements), each of at most `block_bytes` bytes of fp32; by
    default of a size that depends on the vector's length alone.
    """
    size = max(1, (block_bytes or default_bytes(sum(length for _, length in regions))) // 4)
    blocks: list[Block] = []
    offset = 0
    for content, length in regions:
        for start in range(offset, offset + length, size):
            blocks.append(Block(len(blocks), content, start, min(start + size, offset + length)))
        offset += length
    return tuple(blocks)


def assign(blocks: Sequence[Block], num_shards: int) -> tuple[int, ...]:
    """Return the shard that owns each block: always the one with the fewest elements so far, the first among equals."""
    loads = [0] * num_shards
    owners: list[int] = []
    for block in blocks:
        shard = loads.index(min(loads))
        loads[shard] += block.size
        owners.append(shard)
    return tuple(owners)

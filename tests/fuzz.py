"""Mutated payloads for the decoders: whatever the bytes, the answer is a tensor or `PayloadError`.

python -m tests.fuzz --count 200000
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter

import numpy as np
import torch

from raysync.compress.registry import decode, decode_add
from raysync.compress.wire import OVERHEAD_BYTES, pack
from raysync.errors import PayloadError
from tests.conformance.test_codecs import INSTANCES

SIZE = 300


def _seeds() -> list[bytes]:
    generator = np.random.default_rng(0)
    vectors = [torch.from_numpy(generator.standard_normal(size).astype(np.float32)) for size in (0, 1, 65, SIZE)]
    return [codec.encode(vector, 7) for codec in INSTANCES for vector in vectors]


def mutate(payload: bytes, choose: random.Random) -> bytes:
    """Return a damaged payload; half of the time its checksum is mended, as a hostile sender would."""
    data = bytearray(payload)
    for _ in range(choose.randint(1, 4)):
        kind = choose.randrange(5)
        if kind == 0 and data:
            data[choose.randrange(len(data))] ^= 1 << choose.randrange(8)
        elif kind == 1 and data:
            data[choose.randrange(len(data))] = choose.choice((0, 1, 127, 128, 255))
        elif kind == 2:
            del data[choose.randrange(len(data) + 1) :]
        elif kind == 3:
            data += choose.randbytes(choose.randint(1, 40))
        elif len(data) > 8:
            start = choose.randrange(len(data) - 4)
            data[start : start + 4] = choose.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\x10", b"\x2c\x01\0\0"))
    if choose.random() < 0.5 and len(data) >= OVERHEAD_BYTES:
        count = int.from_bytes(data[4:8], "little")
        return pack(data[3], count if choose.random() < 0.8 else SIZE, bytes(data[OVERHEAD_BYTES:]))
    return bytes(data)


def run(count: int, seed: int = 0) -> Counter[str]:
    """Decode `count` mutated payloads; raise what is not `PayloadError`."""
    choose, seeds, outcomes = random.Random(seed), _seeds(), Counter[str]()
    out = torch.zeros(SIZE)
    for _ in range(count):
        payload = mutate(choose.choice(seeds), choose)
        before = out.clone() if choose.random() < 0.02 else None
        try:
            if choose.random() < 0.5:
                decode_add(payload, out)
                out.zero_()
            else:
                decode(payload, SIZE if choose.random() < 0.9 else None)
            outcomes["decoded"] += 1
        except PayloadError:
            outcomes["refused"] += 1
            assert before is None or torch.equal(out, before), "a refused payload has changed something"
    return outcomes


def main() -> int:
    """Fuzz and report."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    started = time.perf_counter()
    outcomes = run(arguments.count, arguments.seed)
    print(
        f"{arguments.count} payloads in {time.perf_counter() - started:.0f} s: {dict(outcomes)}; nothing but PayloadError came out"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

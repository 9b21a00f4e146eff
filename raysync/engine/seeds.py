"""Seeds for everything random, derived from the job's seed and what it is for; never from how often something was
called.
"""

from __future__ import annotations

import zlib


def derive(seed: int, purpose: str, *numbers: int) -> int:
    """Return a 63-bit seed that depends on every argument and on nothing else."""
    text = "/".join((str(seed), purpose, *map(str, numbers))).encode()
    return (zlib.crc32(text) << 31) ^ zlib.crc32(text[::-1] + b"raysync")

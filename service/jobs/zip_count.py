"""How many entries a zip file holds, counted in its own directory without making anything of them.

A directory of 32 MiB holds 700,000 entries of 46 bytes, and `zipfile` makes an object of each when it opens the file.
The count at the end of the file may lie, so the entries themselves are counted, as far as the limit. Where the
directory is, is asked of `zipfile`'s own reader: two that find it in different places can be played off against each
other. Layout: APPNOTE.TXT 4.3.12 and 4.3.16, https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT.
"""

from __future__ import annotations

import io
import struct
import zipfile
from typing import Any

_ENTRY, _ENTRY_BYTES = b"PK\x01\x02", 46
_SAID, _SIZE, _LOCATION = 4, 5, 9
_END_64, _END_64_BYTES = b"PK\x06\x06", 56 + 20


def count_entries(content: bytes, limit: int) -> int:
    """Return how many entries a zip holds, or says it holds if that is more; counting stops one above the limit."""
    reader: Any = zipfile
    end = reader._EndRecData(io.BytesIO(content))
    if not end:
        return 0  # no zip: `zipfile` says so when it opens it
    said, stop = int(end[_SAID]), int(end[_LOCATION])
    if end[0] == _END_64:
        stop -= _END_64_BYTES
    return said if said > limit else max(said, _counted(content, stop - int(end[_SIZE]), stop, limit))


def _counted(content: bytes, start: int, stop: int, limit: int) -> int:
    """Return how many entries are between two places; what is no entry ends the count, and `zipfile` refuses it."""
    count = 0
    while count <= limit and start >= 0 and start + _ENTRY_BYTES <= stop and content[start : start + 4] == _ENTRY:
        start += _ENTRY_BYTES + sum(struct.unpack_from("<HHH", content, start + 28))
        count += 1
    return count

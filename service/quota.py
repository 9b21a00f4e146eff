"""How many streams one caller may hold open: each costs the service a connection and, at first, a thread."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncGenerator

from service.errors import TooManyStreams


class Quota:
    """Counts the open streams of each caller."""

    def __init__(self, per_caller: int) -> None:
        self._per_caller = per_caller
        self._open: Counter[str] = Counter()

    def check(self, caller: str) -> None:
        """Raise if this caller may not open another stream."""
        if self._open[caller] >= self._per_caller:
            raise TooManyStreams(self._per_caller)

    async def counted(self, caller: str, content: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        """Yield what a stream yields; it counts from its first chunk to its end.

        Those opened in the same moment may all be let in: a few too many do no harm, one never given back would.
        """
        self._open[caller] += 1
        try:
            async with contextlib.aclosing(content):
                async for chunk in content:
                    yield chunk
        finally:
            self._open[caller] -= 1
            if not self._open[caller]:
                del self._open[caller]

"""Who may hold how many streams open, and for how long: up to a number, and as long as the token is valid."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator
from functools import partial

from service.errors import DatabaseUnavailable, TooManyStreams
from service.store import Tokens
from service.store.reading import Pools

CHECK_S = 3.0
"""How often tokens with open streams are looked up; a stream ends with what it says next, at the latest a ping."""

logger = logging.getLogger(__name__)


class Quota:
    """Counts the open streams of each token, and ends them when the token is revoked or expires."""

    def __init__(self, per_token: int, tokens: Tokens, pools: Pools) -> None:
        self._per_token, self._tokens, self._pools = per_token, tokens, pools
        self._open: Counter[str] = Counter()
        self._invalid: set[str] = set()
        """Tokens with open streams that cannot be used any more."""
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to look after tokens."""
        self._task = asyncio.create_task(self._run(), name="streams")

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def check(self, token: str) -> None:
        """Raise if this token may not open another stream."""
        if self._open[token] >= self._per_token:
            raise TooManyStreams(self._per_token)

    async def counted(self, token: str, content: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        """Yield what a stream yields, while its token is valid; it counts from its first chunk to its end.

        Those opened in the same moment may all be let in: a few too many do no harm, one never given back would.
        """
        self._open[token] += 1
        try:
            async with contextlib.aclosing(content):
                async for chunk in content:
                    if token in self._invalid:
                        return
                    yield chunk
        finally:
            self._open[token] -= 1
            if not self._open[token]:
                del self._open[token]

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            held = set(self._open)
            if not held:
                continue
            try:
                valid = await self._pools.page(partial(self._tokens.valid, held, time.time()))
            except DatabaseUnavailable as error:
                logger.info("tokens of open streams are looked up later: %s", error)
                continue
            except Exception:
                logger.exception("tokens of open streams could not be looked up; trying again")
                continue
            self._invalid = held - valid

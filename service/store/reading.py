"""Threads and memory for those who read, apart from the ones that steer: however many read, a knob turns at once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")

_HISTORY_THREADS = 2
_PAGE_THREADS = 3


class Pools:
    """Few threads on purpose: more of them would only wait for the interpreter, and let what steers wait with them."""

    def __init__(self) -> None:
        self._history = ThreadPoolExecutor(_HISTORY_THREADS, "history")
        self._pages = ThreadPoolExecutor(_PAGE_THREADS, "pages")

    async def history(self, work: Callable[[], T]) -> T:
        """Run something a stream needs to catch up with what it missed; it takes its turn among all streams."""
        return await asyncio.get_running_loop().run_in_executor(self._history, work)

    async def page(self, work: Callable[[], T]) -> T:
        """Run something a page or a live feed needs."""
        return await asyncio.get_running_loop().run_in_executor(self._pages, work)

    def close(self) -> None:
        """Take no more work."""
        for pool in (self._history, self._pages):
            pool.shutdown(wait=False, cancel_futures=True)


class Shared(Generic[T]):
    """What many ask for in the same moment is made once, and kept for those who come a little later, up to a bound."""

    def __init__(self, max_bytes: int, size_of: Callable[[T], int]) -> None:
        self._max_bytes, self._size_of = max_bytes, size_of
        self._making: dict[object, asyncio.Future[T]] = {}
        self._kept: OrderedDict[object, T] = OrderedDict()
        self._bytes = 0

    async def get(self, key: object, make: Callable[[], Awaitable[T]]) -> T:
        """Return what this key stands for; values of size 0 are not kept, they may grow."""
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        making = self._making.get(key)
        if making is None:
            making = self._making[key] = asyncio.ensure_future(self._make(key, make))
        return await asyncio.shield(making)  # a reader that goes away takes nothing from the others

    async def _make(self, key: object, make: Callable[[], Awaitable[T]]) -> T:
        try:
            value = await make()
        finally:
            del self._making[key]
        size = self._size_of(value)
        if 0 < size <= self._max_bytes:
            self._kept[key] = value
            self._bytes += size
            while self._bytes > self._max_bytes:
                self._bytes -= self._size_of(self._kept.popitem(last=False)[1])
        return value

"""Whether something can be written now: asked with a bound, by one thread, however many want to know."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from service.errors import DatabaseUnavailable
from service.jobs.workers import Workers

_BOUND_S = 1.0
_FRESH_S = 1.0
"""An answer is good for so long: probes come from everywhere."""

logger = logging.getLogger(__name__)


class WriteProbe:
    """Tries a write, and remembers shortly how it went."""

    def __init__(self, write: Callable[[float], None]) -> None:
        self._write, self._workers = write, Workers("probe", 1)
        self._asking: asyncio.Task[str | None] | None = None
        self._asked_s = -_FRESH_S

    async def problem(self) -> str | None:
        """Return why nothing can be written; None if something can."""
        task = self._asking
        if task is None or (task.done() and time.monotonic() - self._asked_s > _FRESH_S):
            task = self._asking = asyncio.create_task(self._ask())
        done, _ = await asyncio.wait({task}, timeout=2 * _BOUND_S)
        return task.result() if done else "it takes too long"

    async def _ask(self) -> str | None:
        try:
            await self._workers.run(self._write, _BOUND_S)
            return None
        except DatabaseUnavailable as error:
            return error.problem
        except Exception:
            logger.exception("the database could not be tried")
            return "the service's log says why"
        finally:
            self._asked_s = time.monotonic()

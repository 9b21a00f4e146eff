"""How often and how long a client waits for a service that does not answer now."""

from __future__ import annotations

from http import HTTPStatus
from typing import Generic, TypeVar

import httpx2 as httpx

from raysync.errors import RaysyncError
from service.client.call import Call

T = TypeVar("T")

TRIES = 6
FIRST_WAIT_S = 0.2
MAX_WAIT_S = 5.0
TRANSIENT = (502, 503, 504)
AWAY_S = 60.0
"""So long a call is repeated, and a stream asked for again, while the service says that it cannot answer now."""


class Unreachable(RaysyncError, ConnectionError):
    """No service answers."""

    def __init__(self, url: str, problem: str) -> None:
        super().__init__(url, problem)
        self.url, self.problem = url, problem

    def __str__(self) -> str:
        return f"no raysync service answers at {self.url} ({self.problem}); start one with `raysync serve`"


class Away(httpx.RemoteProtocolError):
    """A service that answers, and says that it cannot now."""


class Retry(Generic[T]):
    """The tries of one call."""

    def __init__(self, call: Call[T], tries: int) -> None:
        self._call, self._left, self._wait_s, self._has_repeated = call, tries, FIRST_WAIT_S, False
        self._patience_s = AWAY_S if tries > 1 else 0.0

    def after_failure(self, error: httpx.TransportError, url: str) -> float:
        """Return how long to wait before the next try, or raise."""
        was_not_sent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
        self._left -= 1
        if self._left <= 0 or not (self._call.may_repeat or was_not_sent):
            raise Unreachable(url, str(error) or type(error).__name__) from error
        self._has_repeated |= not was_not_sent
        return self._next()

    def after_answer(self, response: httpx.Response) -> float | None:
        """Return how long to wait if the service asks to come again, else None."""
        asked = response.headers.get("retry-after", "")
        if _has_changed_nothing(response) and asked.isdigit() and self._patience_s > 0:
            wait_s = min(MAX_WAIT_S, max(FIRST_WAIT_S, float(asked)))
            self._patience_s -= wait_s
            return wait_s
        self._left -= 1
        if response.status_code not in TRANSIENT or self._left <= 0 or not self._call.may_repeat:
            return None
        self._has_repeated |= response.status_code != HTTPStatus.SERVICE_UNAVAILABLE  # a proxy may have lost the answer
        return min(MAX_WAIT_S, float(asked)) if asked.isdigit() else self._next()

    def read(self, response: httpx.Response) -> T:
        """Return the answer, or raise the problem it tells of; what a repeated call finds removed, it has removed."""
        status = response.status_code
        if self._has_repeated and self._call.method == "DELETE" and status == HTTPStatus.NOT_FOUND:
            status = HTTPStatus.NO_CONTENT
        return self._call.read(status, response.content)

    def _next(self) -> float:
        wait_s, self._wait_s = self._wait_s, min(MAX_WAIT_S, 2 * self._wait_s)
        return wait_s


def _has_changed_nothing(response: httpx.Response) -> bool:
    """Return whether a database that did not answer is all that was in the way: then any call may be repeated."""
    is_away = response.status_code == HTTPStatus.SERVICE_UNAVAILABLE
    return is_away and b"urn:raysync:database-unavailable" in response.content

"""What both clients share: finding the service, trying again, and going on where a stream broke off."""

from __future__ import annotations

import json
from http import HTTPStatus
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import httpx2 as httpx

from raysync.errors import RaysyncError
from service.calls import Call
from service.schemas import EventPublic
from service.settings import ClientSettings

T = TypeVar("T")

TRIES = 6
_FIRST_WAIT_S = 0.2
_MAX_WAIT_S = 5.0
TIMEOUT = httpx.Timeout(60.0, connect=5.0)
STREAM_TIMEOUT = httpx.Timeout(30.0, connect=5.0)  # a heartbeat comes every ten seconds
TRANSIENT = (502, 503, 504)


class Unreachable(RaysyncError, ConnectionError):
    """No service answers."""

    def __init__(self, url: str, problem: str) -> None:
        super().__init__(url, problem)
        self.url, self.problem = url, problem

    def __str__(self) -> str:
        return f"no raysync service answers at {self.url} ({self.problem}); start one with `raysync serve`"


class NoService(Unreachable):
    """Nobody has said where a service is, and none was started here."""

    def __init__(self) -> None:
        super().__init__("", "")

    def __str__(self) -> str:
        return "no raysync service was started here: start one with `raysync serve`, or give --url or RAYSYNC_URL"


class Place(NamedTuple):
    """Where a service is, and the token for it."""

    url: str
    token: str


def find_service(url: str | None = None, token: str | None = None) -> Place:
    """Return the service to talk to: what was given, else the environment's, else the one this user runs here."""
    settings = ClientSettings()
    noted = _noted(settings.data.expanduser() / "client.json")
    url = (url or settings.url or noted.get("url", "")).rstrip("/")
    if not url:
        raise NoService
    if "://" not in url:  # a token goes in clear text only to this machine
        is_here = url.startswith(("127.", "localhost", "[::1]"))
        url = f"{'http' if is_here else 'https'}://{url}"
    own = noted.get("token", "") if url == noted.get("url") else ""  # it is nobody else's business
    return Place(url, token or settings.token or own)


def _noted(path: Path) -> dict[str, str]:
    """Return what the service of this machine has written down for its user."""
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError):
        return {}


class Retry(Generic[T]):
    """How often and how long to wait for a service that does not answer now."""

    def __init__(self, call: Call[T], tries: int) -> None:
        self._call, self._left, self._wait_s, self._has_repeated = call, tries, _FIRST_WAIT_S, False

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
        self._left -= 1
        if response.status_code not in TRANSIENT or self._left <= 0 or not self._call.may_repeat:
            return None
        self._has_repeated |= response.status_code != HTTPStatus.SERVICE_UNAVAILABLE  # a proxy may have lost the answer
        asked = response.headers.get("retry-after", "")
        return min(_MAX_WAIT_S, float(asked)) if asked.isdigit() else self._next()

    def read(self, response: httpx.Response) -> T:
        """Return the answer, or raise the problem it tells of; what a repeated call finds removed, it has removed."""
        status = response.status_code
        if self._has_repeated and self._call.method == "DELETE" and status == HTTPStatus.NOT_FOUND:
            status = HTTPStatus.NO_CONTENT
        return self._call.read(status, response.content)

    def _next(self) -> float:
        wait_s, self._wait_s = self._wait_s, min(_MAX_WAIT_S, 2 * self._wait_s)
        return wait_s


class SseReader:
    """Server-sent events out of lines."""

    def __init__(self) -> None:
        self._kind, self._data, self._id, self.last_id = "message", list[str](), "", ""
        """The last id is that of the last whole event: one that broke off is asked for again."""

    def feed(self, line: str) -> tuple[str, list[str]] | None:
        """Take in a line; return the event it completes as its kind and its data lines."""
        if not line:
            event = (self._kind, self._data) if self._data else None
            self.last_id = self._id or self.last_id
            self._kind, self._data = "message", []
            return event
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "event":
                self._kind = value
            case "data":
                self._data.append(value)
            case "id":
                self._id = value
        return None


class Stream:
    """A stream that may break off, and goes on where it did."""

    def __init__(self, path: str, after: int | None) -> None:
        self.path, self.reader, self._quiet_tries = path, SseReader(), 0
        self.reader.last_id = "" if after is None else str(after)

    @property
    def headers(self) -> dict[str, str]:
        """What the next connection begins with."""
        return {"Last-Event-ID": self.reader.last_id} if self.reader.last_id else {}

    def heard(self) -> None:
        """Note that something came."""
        self._quiet_tries = 0

    def broke_off(self, error: Exception, url: str) -> float:
        """Return how long to wait before connecting again, or raise."""
        self._quiet_tries += 1
        self.reader = _with_id(self.reader.last_id)
        if self._quiet_tries > TRIES:
            raise Unreachable(url, str(error) or type(error).__name__) from error
        return min(_MAX_WAIT_S, _FIRST_WAIT_S * float(2**self._quiet_tries))


def _with_id(last_id: str) -> SseReader:
    reader = SseReader()
    reader.last_id = last_id
    return reader


def event_of(kind: str, data: list[str]) -> EventPublic | None:
    """Return a job's event; a `gap` is told as one, `end` is none."""
    found = json.loads("\n".join(data))
    if kind == "gap":
        return EventPublic(
            job="", sequence=found["before"] - 1, kind="gap", step=0, time_s=0, worker=None, knob_version=0, data=found
        )
    return None if kind == "end" else EventPublic.model_validate(found)


def request_of(call: Call[Any]) -> dict[str, Any]:
    """Return a call as httpx takes it."""
    body = {"json": call.json} if call.json is not None else {"content": call.content} if call.content else {}
    return {"method": call.method, "url": call.path, "params": call.params, "headers": call.headers, **body}


def verification(verify: bool | str) -> Any:
    """Return what httpx wants: True, False, or a context that trusts one certificate."""
    if isinstance(verify, bool):
        return verify
    import ssl

    return ssl.create_default_context(cafile=str(Path(verify)))

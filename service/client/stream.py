"""Server-sent events as a client reads them: a stream goes on where it broke off, and ends with the job."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import httpx2 as httpx

from service.client.retry import AWAY_S, FIRST_WAIT_S, MAX_WAIT_S, Away, Unreachable
from service.http.schemas import EventPublic

T = TypeVar("T")

STREAM_TIMEOUT = httpx.Timeout(30.0, connect=5.0)  # a heartbeat comes every ten seconds
PATIENCE_S = 16.0
OnContact = Callable[[bool], None]
"""Called with True whenever something is heard of a stream, be it a heartbeat, and with False when it breaks off."""


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


class Stream(Generic[T]):
    """A stream that may break off, and goes on where it did.

    Args:
        path: Where it is.
        read: Makes items of an event's kind and data lines; None ends the stream.
        after: The number of the last event that is known.
        on_contact: Hears whether the service answers.
        patience_s: So long, at least, a stream that broke off is asked for again.

    """

    def __init__(
        self,
        path: str,
        read: Callable[[str, list[str]], Sequence[T] | None],
        after: int | None = None,
        on_contact: OnContact | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.path, self.reader, self._wait_s = path, SseReader(), FIRST_WAIT_S
        self._read, self.has_ended = read, False
        self._silent_s = self._away_s = 0.0
        self.reader.last_id = "" if after is None else str(after)
        self._on_contact, self._patience_s = on_contact or (lambda is_there: None), patience_s

    @property
    def headers(self) -> dict[str, str]:
        """What the next connection begins with."""
        return {"Last-Event-ID": self.reader.last_id} if self.reader.last_id else {}

    def feed(self, line: str) -> Sequence[T]:
        """Take in a line; return the items it completes."""
        self._silent_s, self._away_s, self._wait_s = 0.0, 0.0, FIRST_WAIT_S
        self._on_contact(True)
        event = self.reader.feed(line)
        items = self._read(*event) if event is not None else ()
        self.has_ended = items is None
        return items or ()

    def broke_off(self, error: Exception, url: str) -> float:
        """Return how long to wait before connecting again, or raise.

        A service that says that it cannot answer now is waited for longer than one that says nothing.
        """
        self.reader = _with_id(self.reader.last_id)
        is_away = isinstance(error, Away)
        if self._silent_s >= self._patience_s or self._away_s >= max(self._patience_s, AWAY_S):
            raise Unreachable(url, str(error) or type(error).__name__) from error
        self._on_contact(False)
        self._wait_s = min(MAX_WAIT_S, 2 * self._wait_s)
        self._silent_s += 0.0 if is_away else self._wait_s
        self._away_s += self._wait_s if is_away else 0.0
        return self._wait_s


def _with_id(last_id: str) -> SseReader:
    reader = SseReader()
    reader.last_id = last_id
    return reader


def events_of(kind: str, data: list[str]) -> list[EventPublic] | None:
    """Return a job's event; a `gap` is told as one, `end` ends the stream."""
    if kind == "end":
        return None
    found = json.loads("\n".join(data))
    if kind != "gap":
        return [EventPublic.model_validate(found)]
    last = found["before"] - 1
    return [EventPublic(job="", sequence=last, kind=kind, step=0, time_s=0, worker=None, knob_version=0, data=found)]


class Message(NamedTuple):
    """A message of a stream of many jobs."""

    kind: str
    """events, jobs, removed, studies, trials or gap."""
    data: Any
    """As `GET /stream` has it."""


def messages_of(kind: str, data: list[str]) -> list[Message] | None:
    """Return a message of a stream of many jobs; `end` ends the stream."""
    return None if kind == "end" else [Message(kind, json.loads("\n".join(data)))]


def trials_of(kind: str, data: list[str]) -> list[dict[str, Any]] | None:
    """Return a trial as it is now; `end` ends the stream."""
    return None if kind == "end" else [json.loads("\n".join(data))]


def lines_of(kind: str, data: list[str]) -> list[str] | None:
    """Return log lines; `end` ends the stream."""
    return None if kind == "end" else [json.loads(line) for line in data]

"""From events to the points of a chart: of consecutive samples the first, the smallest, the largest and the last stay.

Evenly spread rows would hide spikes, and of metrics that are told rarely nearly all values. A point is a tuple of five
numbers, for there are very many: sequence, step, time, bytes sent until then, and the value.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from raysync.events import Metrics
from service.store.events import EventRow

Point = tuple[int, int, float, float, float]
VALUE = 4
KEPT = 4
"""So many points stay of a piece."""
SYNC = "decision/sync"
"""1 where a step ended in a synchronisation, 0 where it stayed local."""
SCORE = "sync/grad_delta"
_BYTES = ("comm/bytes_up", "comm/bytes_down")


class Key(NamedTuple):
    """What a series is of: a metric of the job, or of one of its workers."""

    name: str
    worker: int | None = None


class Sent(msgspec.Struct, array_like=True):
    """What a job has sent up to a point; one that goes back to a checkpoint counts from there again, this does not."""

    total: float = 0.0
    told: float = 0.0

    def take(self, data: Mapping[str, Any]) -> None:
        """Take in what a job tells."""
        if _BYTES[0] in data:
            told = float(sum(data.get(name) or 0.0 for name in _BYTES))
            self.total, self.told = self.total + max(0.0, told - self.told), told


class Piece(msgspec.Struct, array_like=True):
    """Consecutive samples of a series: how many there were, and those that stay."""

    count: int
    points: list[Point]


class Samples:
    """The samples of events, by series."""

    def __init__(self, sent: Sent, *, by_worker: bool, names: Collection[str] | None = None) -> None:
        self.sent = sent
        self._by_worker, self._names = by_worker, names
        self._found: dict[int | None, dict[str, list[Point]]] = {}

    def take(self, event: EventRow, data: dict[str, Any], *, is_wanted: bool = True) -> None:
        """Take in an event, metrics or a decision; of one that is not wanted only what it says about bytes."""
        if event.kind == Metrics.kind:
            self.sent.take(data)
        if not is_wanted:
            return
        if event.kind == Metrics.kind:
            if not self._by_worker or event.worker is not None:
                self._put(event, event.worker if self._by_worker else None, data)
        elif not self._by_worker:
            self._put(event, None, {SYNC: 1.0 if data.get("sync") else 0.0})
        else:
            for worker, score in (data.get("scores") or {}).items():
                self._put(event, int(worker), {SCORE: score})

    def items(self) -> Iterator[tuple[Key, list[Point]]]:
        """Yield the series."""
        for worker, found in self._found.items():
            yield from ((Key(name, worker), points) for name, points in found.items())

    def _put(self, event: EventRow, worker: int | None, data: Mapping[str, Any]) -> None:
        series = self._found.setdefault(worker, {})
        sequence, step, time_s, sent = event.sequence, event.step, event.time_s, self.sent.total
        for name in data if self._names is None else self._names:
            value = data.get(name)
            if type(value) is float or type(value) is int:
                points = series.get(name)
                if points is None:
                    points = series[name] = []
                points.append((sequence, step, time_s, sent, value))


def reduced(points: Sequence[Point]) -> list[Point]:
    """Return the first, the smallest, the largest and the last of some points, in their order."""
    if len(points) <= KEPT:
        return list(points)
    values = [point[VALUE] for point in points]
    last = len(points) - 1
    return [points[n] for n in sorted({0, values.index(min(values)), values.index(max(values)), last})]


def thinned(points: Sequence[Point], limit: int) -> list[Point]:
    """Return at most about `limit` of these points: of each of as many equal pieces as that gives, those that stay."""
    if len(points) <= limit:
        return list(points)
    pieces = max(1, limit // KEPT)
    bounds = [len(points) * n // pieces for n in range(pieces + 1)]
    return [point for first, end in itertools.pairwise(bounds) for point in reduced(points[first:end])]


def joined(pieces: Iterable[Piece]) -> Piece:
    """Return pieces that follow each other as one."""
    found = list(pieces)
    return Piece(sum(piece.count for piece in found), reduced([point for piece in found for point in piece.points]))

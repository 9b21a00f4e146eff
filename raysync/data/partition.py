"""Who reads which samples: a pure function of (seed, view, worker, step).

A *lap* is one pass over the data by all workers together: the samples, in an order common to all, are cut into N
chunks and each worker reads one. `seldp` passes the chunks on after every lap (worker n reads chunk n, n+1, ...),
so that in a step no two workers hold the same sample, a lap covers everything once, and N laps (an *epoch*) show
everything to all workers. `defdp` never passes them on.

When the membership changes inside a lap, what is left of it is cut anew among the new members and read first:
nothing is repeated or left out. The history needed for that travels in the view's `Cursor`.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from raysync.address import Address
from raysync.control.view import Cursor, View
from raysync.errors import TaskError
from raysync.spec import Data, Partition
from raysync.value import whole

Indices = NDArray[np.int64]


class Sampler:
    """DataViews out sample indices; holds no state but a cache of the orders it has worked out."""

    def __init__(self, data: Data, num_samples: int, seed: int, labels: NDArray[np.int64] | None = None) -> None:
        if data.label_skew is not None and labels is None:
            raise TaskError(
                "data",
                f"data.label_skew={data.label_skew} needs labels: give the task a `labels()` method, or leave it out",
            )
        self._data, self.num_samples, self._seed, self._labels = data, num_samples, seed, labels
        self._pool = lru_cache(maxsize=4)(self._pool_uncached)
        self._chunk = lru_cache(maxsize=16)(self._chunk_uncached)

    def batch(self, view: View, worker: Address, step: int) -> Indices:
        """Return the indices of the samples `worker` reads at `step`."""
        if step < view.start_step:
            raise ValueError(f"view {view.number} deals out data from step {view.start_step} on, not at {step}")
        num_workers, rank = len(view.members), view.rank(worker)
        local = self._local(view, rank, step)
        injection = self._data.injection
        if injection is None:
            return local
        sharers = _generator(self._seed, "share", step).permutation(num_workers)[
            : -whole(-injection.alpha * num_workers)
        ]
        shared = [self._local(view, int(peer), step) for peer in sorted(sharers) if peer != rank]
        return np.concatenate([local, *(batch[: round(injection.beta * len(batch))] for batch in shared)])

    def steps_per_lap(self, num_workers: int) -> int:
        """Return in how many steps `num_workers` workers read the data once."""
        return _lap_steps(self.num_samples, num_workers, self._batch_size(num_workers))

    def advance(self, cursor: Cursor, num_workers: int, steps: int) -> Cursor:
        """Return where the group stands after `steps` steps of `num_workers` workers from `cursor`."""
        if num_workers == 0 or steps == 0:
            return cursor
        position, step = self._seek(cursor, num_workers, steps)
        if step:
            return Cursor(position.epoch, position.lap, (*position.spent, (num_workers, step)))
        return position if position.lap == 0 or position.spent else Cursor(position.epoch + 1)

    def _local(self, view: View, rank: int, step: int) -> Indices:
        num_workers = len(view.members)
        if self.num_samples < num_workers:
            raise TaskError(
                "data", f"{self.num_samples} samples cannot be dealt to {num_workers} workers; lower scale.workers"
            )
        position, lap_step = self._seek(view.cursor, num_workers, step - view.start_step)
        pool = self._pool(position)
        chunk = (rank + position.lap) % num_workers if self._data.partition == "seldp" else rank
        if len(pool) < num_workers:
            return pool[chunk % len(pool) :][:1]
        batch_size = self._batch_size(num_workers)
        lap_steps = _lap_steps(len(pool), num_workers, batch_size)
        return _batch(self._chunk(position, num_workers, chunk), lap_step, lap_steps)

    def _batch_size(self, num_workers: int) -> int:
        injection = self._data.injection
        if injection is None:
            return self._data.batch_size
        return injected_batch_size(self._data.batch_size, injection.alpha, injection.beta, num_workers)

    def _seek(self, cursor: Cursor, num_workers: int, steps: int) -> tuple[Cursor, int]:
        """Return the lap in which step number `steps` from `cursor` falls, and the step within that lap."""
        if cursor.spent:
            batch_size = self._batch_size(num_workers)
            rest = _lap_steps(len(self._pool(cursor)), num_workers, batch_size)
            if steps < rest:
                return cursor, steps
            cursor, steps = Cursor(cursor.epoch + 1), steps - rest
        laps, step = divmod(steps, self.steps_per_lap(num_workers))
        epochs, lap = divmod(cursor.lap + laps, num_workers)
        return Cursor(cursor.epoch + epochs, lap), step

    def _pool_uncached(self, position: Cursor) -> Indices:
        """Return the samples of this lap that earlier views have not read, in the common order."""
        pool = self._order(position.epoch)
        for index, (num_workers, steps) in enumerate(position.spent):
            before = Cursor(position.epoch, position.lap, position.spent[:index])
            lap_steps = _lap_steps(len(pool), num_workers, self._batch_size(num_workers))
            chunks = [self._cut(pool, before, num_workers, chunk) for chunk in range(num_workers)]
            pool = np.concatenate([chunk[_edge(len(chunk), steps, lap_steps) :] for chunk in chunks])
        return pool

    def _chunk_uncached(self, position: Cursor, num_workers: int, chunk: int) -> Indices:
        return self._cut(self._pool(position), position, num_workers, chunk)

    def _cut(self, pool: Indices, position: Cursor, num_workers: int, chunk: int) -> Indices:
        """Return one chunk of a lap in the order it is read: shuffled within, by `defdp` anew each lap."""
        part = pool[_edge(len(pool), chunk, num_workers) : _edge(len(pool), chunk + 1, num_workers)]
        lap = position.lap if self._data.partition == "defdp" else 0
        return part[_generator(self._seed, "chunk", position.epoch, lap, chunk).permutation(len(part))]

    def _order(self, epoch: int) -> Indices:
        """Return the order of all samples: a shuffle common to all workers, partly sorted by label under skew.

        `defdp` keeps one order for the whole job, since a worker keeps its chunk; `seldp` shuffles anew each epoch.
        """
        generator = _generator(self._seed, "order", epoch if self._data.partition == "seldp" else 0)
        shuffled = generator.permutation(self.num_samples)
        if self._data.label_skew is None or self._labels is None:
            return shuffled
        count = round(self._data.label_skew * self.num_samples)
        by_label = shuffled[:count][np.argsort(self._labels[shuffled[:count]], kind="stable")]
        return _interleave(by_label, shuffled[count:])


def injected_batch_size(batch_size: int, alpha: float, beta: float, num_workers: int) -> int:
    """Return b' = b / (1 + alpha * beta * N): a worker's own samples, so that with the shared ones it trains on
    about b.
    """
    return max(1, round(batch_size / (1 + alpha * beta * num_workers)))


def _edge(length: int, part: int, parts: int) -> int:
    """Return where part number `part` starts when `length` things are cut into `parts` parts that differ by at most
    one.
    """
    return part * length // parts


def _lap_steps(length: int, num_workers: int, batch_size: int) -> int:
    """Return in how many steps the chunks of `length` samples are read; never so many that a batch would be empty."""
    longest, shortest = -(-length // num_workers), length // num_workers
    return max(1, min(-(-longest // batch_size), shortest))


def _batch(chunk: Indices, step: int, lap_steps: int) -> Indices:
    return chunk[_edge(len(chunk), step, lap_steps) : _edge(len(chunk), step + 1, lap_steps)]


def _interleave(first: Indices, second: Indices) -> Indices:
    """Return both arrays merged so that every stretch holds each in the same proportion, orders kept."""
    keys = [(np.arange(len(part)) + 0.5) / max(1, len(part)) for part in (first, second)]
    return np.concatenate([first, second])[np.argsort(np.concatenate(keys), kind="stable")]


def _generator(seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    return np.random.default_rng([seed, *purpose.encode(), *numbers])


__all__ = ["Indices", "Partition", "Sampler", "injected_batch_size"]

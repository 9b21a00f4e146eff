"""Data order: coverage, distinctness, skew, injection, and resizes that lose and repeat nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysync.address import worker as worker_at
from raysync.control.view import Cursor, View
from raysync.data import Sampler, injected_batch_size
from raysync.errors import TaskError
from raysync.spec import Data, Injection


def _view(members: int, start_step: int = 0, cursor: Cursor | None = None, number: int = 1) -> View:
    return View(number, tuple(map(worker_at, range(members))), (), start_step, cursor or Cursor())


def _lap(sampler: Sampler, view: View, first_step: int, steps: int) -> list[list[np.ndarray]]:
    return [[sampler.batch(view, worker, first_step + step) for worker in view.members] for step in range(steps)]


@settings(max_examples=60, deadline=None)
@given(
    partition=st.sampled_from(["seldp", "defdp"]),
    workers=st.integers(1, 9),
    extra=st.integers(0, 150),
    batch_size=st.integers(1, 17),
    seed=st.integers(0, 5),
)
def test_lap_covers_every_sample_once_without_overlap(
    partition: str, workers: int, extra: int, batch_size: int, seed: int
) -> None:
    num_samples = workers + extra
    sampler = Sampler(Data(partition=partition, batch_size=batch_size), num_samples, seed)
    steps, view = sampler.steps_per_lap(workers), _view(workers)
    for lap in range(workers + 1):
        batches = _lap(sampler, view, lap * steps, steps)
        for step in batches:
            joined = np.concatenate(step)
            assert len(set(joined.tolist())) == len(joined), "two workers hold the same sample in one step"
            assert all(len(batch) > 0 for batch in step)
        assert sorted(np.concatenate([batch for step in batches for batch in step])) == list(range(num_samples))


def test_seldp_shows_everything_to_everybody_in_n_laps() -> None:
    sampler, view = Sampler(Data(batch_size=4), 103, 3), _view(4)
    for worker in view.members:
        epoch = [sampler.batch(view, worker, step) for step in range(4 * sampler.steps_per_lap(4))]
        assert sorted(np.concatenate(epoch)) == list(range(103))


def test_seldp_is_a_rotated_queue() -> None:
    sampler, view, steps = Sampler(Data(batch_size=5), 100, 3), _view(4), 5
    for lap in range(3):
        for worker in view.members:
            now = [sampler.batch(view, worker, (lap + 1) * steps + step).tolist() for step in range(steps)]
            neighbour = [
                sampler.batch(view, worker_at((worker.index + 1) % 4), lap * steps + step).tolist()
                for step in range(steps)
            ]
            assert now == neighbour


def test_defdp_never_shares() -> None:
    sampler, view = Sampler(Data(partition="defdp", batch_size=4), 103, 3), _view(4)
    seen = [{int(i) for step in range(30) for i in sampler.batch(view, worker, step)} for worker in view.members]
    assert sum(map(len, seen)) == 103
    assert not set.intersection(*seen)
    lap = sampler.steps_per_lap(4)
    assert [sampler.batch(view, worker_at(0), s).tolist() for s in range(lap)] != [
        sampler.batch(view, worker_at(0), lap + s).tolist() for s in range(lap)
    ]


@settings(max_examples=80, deadline=None)
@given(
    partition=st.sampled_from(["seldp", "defdp"]),
    phases=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 9)), min_size=1, max_size=5),
    batch_size=st.integers(1, 8),
)
def test_resize_neither_loses_nor_repeats(partition: str, phases: list[tuple[int, int]], batch_size: int) -> None:
    """However often the group is resized, every sample is read k or k + 1 times at any moment."""
    num_samples = 97
    sampler = Sampler(Data(partition=partition, batch_size=batch_size), num_samples, 1)
    counts, cursor, step = np.zeros(num_samples, int), Cursor(), 0
    for number, (workers, steps) in enumerate(phases):
        view = _view(workers, step, cursor, number + 1)
        for now in range(step, step + steps):
            batches = [sampler.batch(view, worker, now) for worker in view.members]
            if sum(map(len, batches)) >= workers:  # the last few samples of a cut-up lap may be fewer than the workers
                np.add.at(counts, np.unique(np.concatenate(batches)), 1)
        cursor, step = sampler.advance(cursor, workers, steps), step + steps
    assert counts.max() - counts.min() <= 1


def test_sampling_is_pure_in_its_arguments() -> None:
    data, view = Data(batch_size=4), _view(3)
    forward, backward = Sampler(data, 50, 9), Sampler(data, 50, 9)
    first = [forward.batch(view, worker_at(1), step).tolist() for step in range(40)]
    second = [backward.batch(view, worker_at(1), step).tolist() for step in reversed(range(40))]
    assert first == second[::-1]
    assert Sampler(data, 50, 10).batch(view, worker_at(1), 0).tolist() != first[0]


def test_label_skew_gives_each_chunk_few_labels() -> None:
    labels = np.arange(1000) % 10

    def labels_of_worker_0(skew: float | None) -> float:
        sampler = Sampler(Data(partition="defdp", batch_size=10, label_skew=skew), 1000, 0, labels)
        chunk = np.concatenate([sampler.batch(_view(10), worker_at(0), step) for step in range(10)])
        return float(np.bincount(labels[chunk], minlength=10).max() / len(chunk))

    assert labels_of_worker_0(1.0) == 1.0
    assert 0.45 < labels_of_worker_0(0.5) < 0.65
    assert labels_of_worker_0(None) < 0.3
    with pytest.raises(TaskError, match="label_skew"):
        Sampler(Data(label_skew=0.5), 10, 0)


@pytest.mark.parametrize(
    ("alpha", "beta", "workers", "expected"), [(0.5, 0.5, 8, 11), (0.75, 0.75, 8, 6), (0.5, 0.5, 10, 9)]
)
def test_injection_shrinks_the_local_batch_by_the_formula(
    alpha: float, beta: float, workers: int, expected: int
) -> None:
    assert injected_batch_size(32, alpha, beta, workers) == expected


def test_injection_adds_the_sharers_samples() -> None:
    data = Data(partition="defdp", batch_size=32, injection=Injection(alpha=0.5, beta=0.5))
    sampler, view = Sampler(data, 4000, 0), _view(8)
    alone = Sampler(Data(partition="defdp", batch_size=11), 4000, 0)
    sizes = []
    for step in range(20):
        batches = {worker: set(sampler.batch(view, worker, step).tolist()) for worker in view.members}
        own = {worker: set(alone.batch(view, worker, step).tolist()) for worker in view.members}
        for worker, batch in batches.items():
            assert own[worker] <= batch
            sharers = {peer for peer in view.members if peer != worker and own[peer] & batch}
            assert len(sharers) in (3, 4), "half of eight workers share, one of them possibly this one"
            sizes.append(len(batch))
    assert abs(np.mean(sizes) - 32) < 4


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(TaskError, match=r"lower scale\.workers"):
        Sampler(Data(batch_size=1), 3, 0).batch(_view(4), worker_at(0), 0)

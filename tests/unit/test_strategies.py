"""Decisions of the strategies without a signal, as tables."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raysync.address import worker
from raysync.sync import DiLoCo, FedAvg, LocalSGD, StepContext, Strategy
from raysync.sync.bound import may_read, staleness


def _sync_steps(
    strategy: Strategy, steps: int, members: int = 4, lr_at: Callable[[int], float] = lambda _: 0.1
) -> list[int]:
    last, found = -1, []
    for step in range(steps):
        context = StepContext(step, last, tuple(map(worker, range(members))), (), steps, 12, lr_at, seed=1)
        if strategy.decide(context).sync:
            last = step
            found.append(step)
    return found


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (LocalSGD(sync_every=4), [3, 7, 11, 15]),
        (LocalSGD(sync_every=1), list(range(16))),
        (LocalSGD(sync_every=4, post_local_after=6), [0, 1, 2, 3, 4, 5, 9, 13]),
        (DiLoCo(sync_every=5), [4, 9, 14]),
        (FedAvg(local_epochs=0.25), [2, 5, 8, 11, 14]),
        (FedAvg(local_epochs=0.25, sync_every=7), [6, 13]),
    ],
)
def test_fixed_schedules(strategy: Strategy, expected: list[int]) -> None:
    assert _sync_steps(strategy, 16) == expected


def test_qsr_grows_the_interval_as_the_rate_falls() -> None:
    """H = max(H_base, floor((alpha / lr)^2)), recomputed right after an averaging, cut to what is left."""
    strategy = LocalSGD(sync_every=2, qsr_alpha=0.2)
    found = _sync_steps(strategy, 40, lr_at=lambda step: 0.2 if step < 6 else 0.1 if step < 14 else 0.05)
    assert found == [1, 3, 5, 9, 13, 29, 39]
    assert _sync_steps(strategy, 10, lr_at=lambda _: 0.0) == [9]


@pytest.mark.parametrize(
    ("participation", "members", "expected"), [(1.0, 4, 4), (0.5, 4, 2), (0.5, 5, 2), (0.1, 4, 1), (0.29, 100, 29)]
)
def test_fedavg_draws_its_share(participation: float, members: int, expected: int) -> None:
    strategy = FedAvg(participation=participation, sync_every=1)
    everyone = tuple(map(worker, range(members)))
    drawn = [strategy.decide(StepContext(step, step - 1, everyone, (), 50, 12, lambda _: 0.1, 1)) for step in range(50)]
    assert {len(choice.participants or ()) for choice in drawn} == {expected}
    if expected < members:
        assert {member for choice in drawn for member in choice.participants or ()} == {*everyone}, "all get their turn"


BOUND = [
    # clock to read, clocks pushed, bound, may read
    (0, {0: -1, 1: -1}, 0, True),
    (1, {0: 0, 1: -1}, 0, False),
    (1, {0: 0, 1: 0}, 0, True),
    (1, {0: 0, 1: -1}, 1, True),
    (5, {0: 4, 1: 1}, 3, True),
    (6, {0: 5, 1: 1}, 3, False),
    (6, {0: 5}, 0, True),
]


@pytest.mark.parametrize(("clock", "pushed", "bound", "expected"), BOUND)
def test_read_needs_all_updates_up_to_the_bound(clock: int, pushed: dict[int, int], bound: int, expected: bool) -> None:
    allowed, reason = may_read(clock, min(pushed.values()), bound)
    assert allowed is expected
    assert reason
    assert (staleness(clock, min(pushed.values())) <= bound) is expected

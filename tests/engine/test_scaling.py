"""What the cores cost does not grow with the job: a slice of `python -m tests.bench scaling`, with room for noise."""

from __future__ import annotations

import pytest

from tests.bench.scaling import STRATEGIES, Costs, averaging_ms, shard_us, step_us


@pytest.mark.parametrize("kind", STRATEGIES)
def test_a_step_costs_the_same_among_many_workers(kind: str) -> None:
    few, many = ([step_us(kind, n, steps) for _ in range(3)] for n, steps in ((16, 30), (512, 4)))
    for what in Costs._fields:
        assert least(many, what) < 2.5 * least(few, what), "the coordinator's was 10 times as much"


def least(costs: list[Costs], what: str) -> float:
    return min(getattr(cost, what) for cost in costs)


def test_a_push_costs_the_same_among_many_workers() -> None:
    few, many = min(shard_us(16, 60) for _ in range(3)), min(shard_us(512, 4) for _ in range(3))
    assert many < 2.5 * few


def test_averaged_moments_cost_the_same_per_megabyte() -> None:
    small, large = min(averaging_ms(1, 16) for _ in range(2)), min(averaging_ms(16, 16) for _ in range(2))
    assert large < 2.5 * small, "every block gathered all moments anew"

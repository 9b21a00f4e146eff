"""What the cores cost does not grow with the job: a slice of `python -m tests.bench scaling`, with room for noise."""

from __future__ import annotations

import pytest

from tests.bench.scaling import STRATEGIES, averaging_ms, coordinator_us, shard_us


@pytest.mark.parametrize("kind", STRATEGIES)
def test_a_report_costs_the_same_among_many_workers(kind: str) -> None:
    few = min(coordinator_us(kind, 16, 30) for _ in range(3))
    many = min(coordinator_us(kind, 512, 4) for _ in range(3))
    assert many < 2.5 * few, "it was 10 times as much"


def test_a_push_costs_the_same_among_many_workers() -> None:
    few, many = min(shard_us(16, 60) for _ in range(3)), min(shard_us(512, 4) for _ in range(3))
    assert many < 2.5 * few


def test_averaged_moments_cost_the_same_per_megabyte() -> None:
    small, large = min(averaging_ms(1, 16) for _ in range(2)), min(averaging_ms(16, 16) for _ in range(2))
    assert large < 2.5 * small, "every block gathered all moments anew"

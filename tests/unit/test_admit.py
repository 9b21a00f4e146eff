"""Which jobs may start now: the table, and what holds for all queues."""

from __future__ import annotations

import itertools
import random

import pytest

from raysync.control.admit import Queued, admit
from raysync.control.polling import MAX_POLLS, poll_pause_s, poll_wait_s, status_every_s

LINE = [Queued("old", 0, 1.0), Queued("new", 0, 2.0), Queued("urgent", 5, 3.0), Queued("idle", -5, 0.0)]


@pytest.mark.parametrize(
    ("num_live", "max_live", "ids"),
    [
        (0, 0, ()),
        (0, 1, ("urgent",)),
        (0, 2, ("urgent", "old")),
        (0, 9, ("urgent", "old", "new", "idle")),
        (1, 2, ("urgent",)),
        (2, 2, ()),
        (5, 2, ()),  # the limit was lowered
    ],
)
def test_admit_table(num_live: int, max_live: int, ids: tuple[str, ...]) -> None:
    found = admit(LINE, num_live, max_live)
    assert found.ids == ids
    assert "max_live_jobs" in found.reason


def test_nobody_is_overtaken_within_a_priority() -> None:
    rng = random.Random(7)
    for _ in range(300):
        line = [Queued(f"j{n}", rng.randint(-2, 2), float(rng.randint(0, 5))) for n in range(rng.randint(0, 12))]
        num_live, max_live = rng.randint(0, 6), rng.randint(1, 8)
        ids = admit(rng.sample(line, len(line)), num_live, max_live).ids
        assert ids == admit(line, num_live, max_live).ids, "whatever order they come in"
        assert len(ids) == min(len(line), max(0, max_live - num_live))
        chosen = {job.id: job for job in line if job.id in ids}
        for inside, outside in itertools.product(chosen.values(), (job for job in line if job.id not in chosen)):
            assert inside.turn < outside.turn


def test_many_jobs_together_ask_no_more_than_a_gateway_bears() -> None:
    assert (poll_wait_s(1), poll_pause_s(1), status_every_s(1)) == (5.0, 0.0, 2.0)
    for count in (1, 50, 51, 200, 1000, 10_000):
        assert poll_wait_s(count) * count / MAX_POLLS <= 5.0 * max(1.0, count / MAX_POLLS)
        asked_per_s = count / max(poll_pause_s(count), 1e-9) if poll_pause_s(count) else 0
        assert asked_per_s <= 401
        assert count / status_every_s(count) <= MAX_POLLS

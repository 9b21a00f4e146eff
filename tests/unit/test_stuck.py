"""When a step is said to take far too long, and where its code is."""

from __future__ import annotations

import sys
import threading
import time

import pytest

from actors.storage.retry import patiently
from raysync.control.stuck import FIRST_S, FLOOR_S, PATIENCE, StepTimes
from raysync.failure import where_is


def timed(*steps_s: float) -> StepTimes:
    """Return the times of a worker whose steps took so long, and that begins another at 100."""
    times = StepTimes()
    for step_s in steps_s:
        times.began(50.0)
        times.ended(50.0 + step_s)
    times.began(100.0)
    return times


@pytest.mark.parametrize(
    ("steps_s", "bound_s"),
    [
        ([], FIRST_S),
        ([0.01] * 5, FLOOR_S),
        ([2.0] * 5, PATIENCE * 2.0),
        ([2.0] * 20 + [500.0], PATIENCE * 2.0),  # one that was very long says little
        ([2.0, 30.0, 2.0, 30.0], PATIENCE * 30.0),  # one that often is, all
        ([9.0] * 5 + [0.01] * 50, FLOOR_S),  # long ago
    ],
)
def test_a_step_is_stuck_once_it_takes_far_longer_than_usual(steps_s: list[float], bound_s: float) -> None:
    times = timed(*steps_s)
    assert times.stuck_s(100.0 + 0.9 * bound_s) is None
    assert times.stuck_s(100.0 + 1.1 * bound_s) == pytest.approx(1.1 * bound_s)
    assert times.stuck_s(100.0 + 2.0 * bound_s) is None, "it is told once"
    times.ended(200.0)
    assert times.stuck_s(1000.0) is None, "nothing is computed"


def test_where_code_is_names_the_users_own_line() -> None:
    """The line of the user's own that a thread of raysync's is at, below whatever library it called."""
    reached, leave = threading.Event(), threading.Event()

    def loss() -> None:
        reached.set()
        leave.wait(30.0)

    thread = threading.Thread(target=patiently, args=(loss, "waiting"))
    thread.start()
    try:
        assert reached.wait(30.0)
        time.sleep(0.05)
        ident = thread.ident
        assert ident is not None
        found = where_is(sys._current_frames()[ident])
    finally:
        leave.set()
        thread.join()
    assert "test_stuck.py" in found
    assert "in loss" in found
    assert "leave.wait(30.0)" in found

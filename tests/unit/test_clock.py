"""A job's records carry one clock, whoever told what, through recoveries and restarts of the controller."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from actors.storage.folder import Folder
from actors.storage.journal import Journal
from raysync.control.clock import JobClock
from raysync.control.states import JobState
from raysync.events import Event, StateChange

BEGAN_S = 1_700_000_000.0
"""Large, as a wall clock is."""


def event(sequence: int, time_s: float) -> Event:
    return Event(sequence=sequence, kind="metrics", time_s=time_s, step=sequence, data={"train/loss": 1.0})


def test_the_coordinators_events_are_told_by_the_controllers_clock() -> None:
    clock = JobClock(BEGAN_S)
    assert round(clock.now(BEGAN_S + 12.55), 2) == 12.55
    clock.answered(7.7, BEGAN_S + 12.6)  # its own clock began when it was made
    assert round(clock.of(7.67), 2) == 12.57
    clock.answered(8.0, BEGAN_S + 13.5)  # a slow answer tells less about the difference
    assert round(clock.of(8.0), 2) == 12.9


def test_a_recovery_takes_the_coordinator_back_but_not_the_job() -> None:
    clock = JobClock(BEGAN_S)
    clock.answered(50.0, BEGAN_S + 55.0)
    assert clock.of(50.0) == 55.0
    clock.restarted()
    clock.answered(20.0, BEGAN_S + 70.0)  # from a checkpoint of second 20
    assert clock.of(20.0) == 70.0


def test_a_controller_that_is_restarted_goes_on_with_the_same_clock(tmp_path: Path) -> None:
    journal = Journal(Folder(str(tmp_path)))
    clock = JobClock(BEGAN_S, journal.last_s)
    journal.note(StateChange(JobState.STARTING, "", "", BEGAN_S + 3.0), clock.now(BEGAN_S + 3.0))
    journal.add(event(0, 40.0))
    journal.close()
    again = Journal(Folder(str(tmp_path)))
    assert again.last_s == 40.0
    assert JobClock(BEGAN_S, again.last_s).now(BEGAN_S + 60.0) == 60.0
    assert JobClock(BEGAN_S, again.last_s).now(BEGAN_S + 30.0) == 40.0, "a wall clock that was set back"
    again.close()


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1000)), max_size=30))
def test_whatever_the_clocks_say_time_does_not_go_back(told: list[tuple[bool, float]]) -> None:
    clock = JobClock(BEGAN_S)
    times = []
    for is_own, time_s in told:
        if not is_own:
            clock.answered(time_s, BEGAN_S + time_s / 2)
        times.append(clock.now(BEGAN_S + time_s) if is_own else clock.of(time_s))
    assert all(before <= after for before, after in pairwise(times))

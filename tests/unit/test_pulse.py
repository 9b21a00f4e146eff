"""When a process that does not answer is taken for frozen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from actors.shell.process import is_stopped
from raysync.control.pulse import PATIENCE, SUSPECT_S, UNSURE_S, Pulse


def beaten(*answers_s: float) -> Pulse:
    """Return what is known of a process that took so long for each answer, and was asked again at 0."""
    pulse = Pulse()
    for answer_s in answers_s:
        pulse.ask(-answer_s)
        pulse.answered(0.0)
    pulse.ask(0.0)
    return pulse


def test_one_that_its_machine_has_stopped_is_frozen_at_once_any_other_is_given_time() -> None:
    pulse = beaten(0.002, 0.004)
    assert not pulse.is_frozen(0.9 * SUSPECT_S, is_stopped=True)
    assert pulse.is_frozen(1.1 * SUSPECT_S, is_stopped=True)
    assert not pulse.is_frozen(0.9 * UNSURE_S, is_stopped=False)
    assert pulse.is_frozen(1.1 * UNSURE_S, is_stopped=False)
    pulse.answered(1.1 * SUSPECT_S)
    assert not pulse.is_frozen(99.0, is_stopped=True), "nothing is asked"


@pytest.mark.parametrize("slow_s", [1.0, 1.8])
def test_one_that_was_slow_is_given_more_time_until_that_is_long_ago(slow_s: float) -> None:
    pulse = beaten(slow_s, 0.001)
    assert not pulse.is_frozen(0.9 * PATIENCE * slow_s, is_stopped=False)
    assert pulse.is_frozen(1.1 * PATIENCE * slow_s, is_stopped=False)
    assert beaten(slow_s, *[0.001] * 20).is_frozen(1.1 * UNSURE_S, is_stopped=False)


def test_whoever_asks_late_waits_longer() -> None:
    assert not beaten(0.001).is_frozen(0.9 * PATIENCE * 3.0, is_stopped=False, lag_s=3.0)


def test_one_that_was_frozen_for_long_is_noticed_again() -> None:
    assert beaten(60.0).is_frozen(PATIENCE * 2.0 + 0.1, is_stopped=False)


def test_a_machine_tells_who_is_stopped() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        assert not is_stopped(child.pid)
        os.kill(child.pid, signal.SIGSTOP)
        ends_s = time.monotonic() + 10
        while not is_stopped(child.pid):
            assert time.monotonic() < ends_s
            time.sleep(0.01)
    finally:
        child.kill()
        child.wait()
    assert not is_stopped(child.pid)

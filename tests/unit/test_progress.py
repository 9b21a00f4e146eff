"""What a person sees while a job runs, in a narrow terminal as in a wide one."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from raysync.control.states import JobState
from raysync.events import Metrics, NewReason
from service.cli.progress import ProgressLine, headline

METRICS = {
    "train/loss": 0.0051,
    "eval/accuracy": 0.972,
    "sync/lssr": 0.83,
    "comm/bytes_up": 2.7e6,
    "train/samples_per_s": 18393.0,
}


@pytest.mark.parametrize("width", [80, 100, 140])
def test_step_and_time_left_are_never_squeezed_out(width: int) -> None:
    terminal = io.StringIO()
    console = Console(file=terminal, width=width, force_terminal=True, color_system=None)
    with ProgressLine("digits-with-a-long-name-of-its-own", 2000, console) as line:
        for step in range(1200, 1235):
            line.show(Metrics(METRICS), step, 0.1 * step)
    drawn = terminal.getvalue().splitlines()
    last = [line for line in drawn if "loss" in line][-1]
    assert "1235/2000" in last
    assert "loss 0.005, accuracy" in last
    assert "0:00:00 left 0:01:1" in last
    assert ("18,393 samples/s" in last) == (width == 140)


def test_while_a_job_waits_the_line_says_what_for() -> None:
    terminal = io.StringIO()
    console = Console(file=terminal, width=100, force_terminal=True, color_system=None)
    with ProgressLine("digits", 2000, console) as line:
        line.show(NewReason(JobState.PENDING, "4 workers need 1 GPU each; 0 fit now [0 GPU]"), 0)
    assert "4 workers need 1 GPU each; 0 fit now [0 GPU]" in terminal.getvalue()


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("", ""),
        ("all steps were made", "all steps were made"),
        (
            "worker/0: Traceback (most recent call last):\n  File x\n    y\nRuntimeError: my own mistake\n",
            "worker/0: RuntimeError: my own mistake",
        ),
        (
            "the controller failed:\nTraceback (most recent call last):\n  x\nKeyError: 1",
            "the controller failed: KeyError: 1",
        ),
        ("first\nsecond", "first"),
    ],
)
def test_a_reason_in_one_line(reason: str, expected: str) -> None:
    assert headline(reason) == expected


def test_while_the_service_is_away_the_line_says_for_how_long() -> None:
    now_s = 100.0
    terminal = io.StringIO()
    console = Console(file=terminal, width=120, force_terminal=True, color_system=None)
    line = ProgressLine("digits", 2000, console, now_s=lambda: now_s)
    line.show(Metrics(METRICS), 0, 0.1)
    now_s = 500.0
    assert line.silence is None, "a run without a service may be silent for as long as a step takes"
    line.contact(True)
    now_s = 512.0
    assert line.silence is None, "a stream's heartbeat comes every ten seconds"
    now_s = 516.0
    assert line.silence == "the service does not answer for 16 s, trying again"
    line.contact(True)
    assert line.silence is None
    line.contact(False)
    now_s = 518.0
    assert line.silence == "the service does not answer for 2 s, trying again"
    with line:
        pass
    assert "the service does not answer for 2 s, trying again" in terminal.getvalue()

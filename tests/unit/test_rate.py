"""Samples per second and time left: nothing until they are known, and then near the truth at once."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator

import pytest
from rich.console import Console

from raysync.address import worker
from raysync.engine import messages as m
from raysync.engine.coordinator.step_metrics import StepMetrics
from raysync.events import Metrics
from raysync.rate import Rate
from raysync.spec import parse_spec
from service.cli.progress import ProgressLine

STEP_S = 0.1


def times(count: int, first_s: float = 5.0, step_s: float = STEP_S) -> Iterator[float]:
    """The end of each step of a job whose first one took long."""
    return (first_s + step_s * step for step in range(count))


def test_the_rate_counts_from_the_first_step_not_from_the_start() -> None:
    rate = Rate()
    rates = [rate.add(32.0, now_s) for now_s in times(60)]
    assert rates[:11] == [None] * 11
    assert rates[11:] == pytest.approx([320.0] * 49)


def test_what_the_first_round_compiles_is_no_slow_work() -> None:
    rate = Rate()
    told = [rate.add(64.0, now_s) for now_s in (10.4, 15.8, *times(30, first_s=15.802, step_s=0.002))]
    known = [found for found in told if found is not None]
    assert known == pytest.approx([32_000.0] * 21), "12 samples/s were told for the first 5 seconds"


@pytest.mark.parametrize("step_s", [0.0004, 0.003, 0.7, 40.0])
def test_the_first_rate_told_is_right_whether_steps_are_short_or_long(step_s: float) -> None:
    rate = Rate()
    told = [found for now_s in times(30, step_s=step_s) if (found := rate.add(1.0, now_s)) is not None]
    assert len(told) >= 18
    assert told == pytest.approx([1 / step_s] * len(told))


def test_two_reports_that_come_at_once_are_no_rate() -> None:
    rate = Rate()
    assert [rate.add(32.0, now_s) for now_s in (5.0, 5.0, 5.0001)] == [None] * 3


def test_it_follows_a_change_within_the_window() -> None:
    rate = Rate(window_s=5.0)
    told = [rate.add(1.0, now_s) for now_s in (*times(100), *times(60, first_s=15.2, step_s=0.2))]
    assert told[99] == pytest.approx(10.0)
    assert told[-1] == pytest.approx(5.0, rel=0.02)


def test_a_pause_is_no_slow_work() -> None:
    rate = Rate()
    before = [rate.add(1.0, now_s) for now_s in times(50)]
    after = [rate.add(1.0, now_s) for now_s in times(50, first_s=200.0)]
    assert before[-1] == pytest.approx(10.0)
    assert [found for found in after if found is not None] == pytest.approx([10.0] * 40)


def test_a_step_tells_samples_per_second_once_they_are_known() -> None:
    tally = StepMetrics(parse_spec({"task": {"kind": "digits"}}))
    metrics = {"train/loss": 1.0, "train/samples": 32.0, "feedback/residual_norm": 0.0}
    metrics |= dict.fromkeys(("comm/bytes_up", "comm/bytes_down", "comm/dense_bytes"), 0.0)
    told = []
    for step, now_s in enumerate(times(20)):
        reports = {sender: m.Report(1, sender, step, (), metrics) for sender in (worker(0), worker(1))}
        told.append(tally.metrics(reports, now_s).get("train/samples_per_s"))
    assert told[:11] == [None] * 11
    assert told[11:] == pytest.approx([640.0] * 9)


def drawn(line_count: int, first_step: int = 0) -> str:
    """Return the last line drawn for a job of 1000 steps whose events all came within a moment."""
    terminal = io.StringIO()
    console = Console(file=terminal, width=140, force_terminal=True, color_system=None)
    with ProgressLine("digits", 1000, console) as line:
        for step, time_s in enumerate(times(line_count), first_step):
            line.show(Metrics({"train/loss": 1.0}), step, time_s)
    return [text for text in terminal.getvalue().splitlines() if "loss" in text][-1]


@pytest.mark.parametrize("first_step", [0, 400])
def test_the_time_left_is_the_jobs_however_fast_its_events_come(first_step: int) -> None:
    """A command that begins to watch late, or a job that goes on from a checkpoint, gets many events at once."""
    left = re.search(r"left (\d+):(\d\d):(\d\d)", drawn(200, first_step))
    assert left is not None
    seconds = int(left[1]) * 3600 + int(left[2]) * 60 + int(left[3])
    assert seconds == round((800 - first_step) * STEP_S)


def test_no_time_left_is_told_before_it_is_known() -> None:
    assert "left" not in drawn(3)
    assert "-:--" not in drawn(3)

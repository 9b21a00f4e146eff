"""Every schedule of the union, replayed: free of deadlock, with the live activations, delays and bubbles it promises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest

from actors.storage.folder import Folder
from actors.storage.spans import read_spans, write_spans
from raysync.address import stage
from raysync.errors import BrokenPlan
from raysync.pipeline import AnySchedule, AsyncOneFOneB, GPipe, OneFOneB, Schedule
from raysync.pipeline.base import Kind, Op
from raysync.pipeline.cut import cut_evenly
from raysync.pipeline.replay import Costs, prove, replay
from raysync.pipeline.trace import Traced, chrome_trace, utilisation
from raysync.spec import parse_spec
from service.cli.local_run import save_trace

SCHEDULES: tuple[type[Schedule], ...] = get_args(get_args(AnySchedule)[0])


@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.parametrize("stages", range(1, 7))
@pytest.mark.parametrize("count", [1, 2, 4, 9])
def test_every_schedule_ends_and_passes_each_microbatch_once_in_both_directions(
    kind: type[Schedule], stages: int, count: int
) -> None:
    schedule = kind.model_validate({"kind": kind.model_fields["kind"].default})
    replayed = prove(schedule, stages, count)
    for number in range(stages):
        ops = [span.op for span in replayed.spans if span.stage == number]
        for passed in (Kind.FORWARD, Kind.BACKWARD):
            assert sorted(op.microbatch for op in ops if op.kind is passed) == [*range(count)]
        assert sum(op.kind is Kind.STEP for op in ops) == (count if schedule.is_asynchronous else 1)
        assert replayed.peak_live[number] == schedule.live(number, stages, count)


def test_live_activations_are_what_the_papers_say() -> None:
    assert prove(GPipe(), 4, 8).peak_live == (8, 8, 8, 8)
    assert prove(OneFOneB(), 4, 8).peak_live == (4, 3, 2, 1)
    assert prove(AsyncOneFOneB(), 4, 8).peak_live == (4, 3, 2, 1)


def test_bubbles_are_what_the_papers_say() -> None:
    """(P - 1) / (M + P - 1) of the time, for both synchronous schedules; none in the steady state without a drain."""
    for schedule in (GPipe(), OneFOneB()):
        assert prove(schedule, 4, 8).bubble == pytest.approx([3 / 11] * 4)
    assert max(prove(AsyncOneFOneB(), 4, 300).bubble) < 0.011


@pytest.mark.parametrize("stages", [2, 4, 6])
def test_the_delay_of_an_asynchronous_stage_grows_to_its_distance_from_the_last(stages: int) -> None:
    schedule = AsyncOneFOneB()
    for number in range(stages):
        steps, begun, delays = 0, dict[int, int](), list[int]()
        for op in schedule.plan(number, stages, 20):
            if op.kind is Kind.FORWARD:
                begun[op.microbatch] = steps
            elif op.kind is Kind.BACKWARD:
                delays.append(steps - begun[op.microbatch])
            else:
                steps += 1
        full = stages - 1 - number
        assert delays == [min(nth, full) for nth in range(20)]
        assert schedule.delay(number, stages) == full


def test_plans_that_cannot_be_carried_out_are_named() -> None:
    forward, backward = Op(Kind.FORWARD, 0), Op(Kind.BACKWARD, 0)
    with pytest.raises(BrokenPlan, match="no stage can go on: stage 0 for backward 0, stage 1 for forward 0"):
        replay([(backward, forward), (forward, backward)])
    with pytest.raises(BrokenPlan, match="without backward pass"):
        replay([(forward,)])
    with pytest.raises(BrokenPlan, match="twice"):
        replay([(forward, forward, backward)])


def test_latency_is_waited_for_by_synchronous_schedules_and_hidden_by_the_other() -> None:
    slow = Costs(forward_s=5.0, backward_s=10.0, latency_s=20.0)
    rates = [400 / prove(AsyncOneFOneB(slack=slack), 4, 400, slow).duration_s for slack in range(4)]
    alone = 4 / prove(GPipe(), 4, 4, slow).duration_s
    assert rates[1] / alone > 1.5 > rates[0] / alone > 1.2
    assert rates == sorted(rates)
    assert rates[3] == pytest.approx(1 / 15, rel=0.05), "the stages are busy all the time"


def test_chains_are_cut_where_the_dearest_stage_is_cheapest() -> None:
    assert cut_evenly([1, 1, 1, 1], 2) == (range(2), range(2, 4))
    assert cut_evenly([9, 1, 1, 1], 2) == (range(1), range(1, 4))
    assert cut_evenly([1, 2, 3, 4, 5, 6], 3) == (range(3), range(3, 5), range(5, 6))
    with pytest.raises(ValueError, match="2 layers cannot be cut into 3"):
        cut_evenly([1, 1], 3)


def test_traces_are_drawn_and_saved_beside_the_job(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    spec = parse_spec({"task": {"kind": "digits"}, "scale": {"workers": 1, "stages": 2}, "schedule": {"kind": "gpipe"}})
    assert "no stage has ended" in save_trace(str(tmp_path), spec)
    for span in prove(GPipe(), 2, 4).spans:
        known = [found for found in read_spans(Folder(str(tmp_path)), spec) if found.who == stage(span.stage, 0)]
        write_spans(
            Folder(str(tmp_path)),
            stage(span.stage, 0),
            [*known, Traced(stage(span.stage, 0), span.op.kind, 0, span.op.microbatch, span.start_s, span.end_s)],
        )
    assert save_trace(str(tmp_path), spec).endswith("trace.png and trace.json")
    assert (tmp_path / "trace.png").read_bytes().startswith(b"\x89PNG")
    names = [event["name"] for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]]
    assert names.count("forward 0.3") == 2
    whole = parse_spec({"task": {"kind": "digits"}})
    assert "has no schedule to trace" in save_trace(str(tmp_path), whole)


def test_traces_are_what_chrome_reads() -> None:
    spans = [Traced(stage(0, 0), Kind.FORWARD, 3, 1, 10.0, 10.5), Traced(stage(0, 0), Kind.BACKWARD, 3, 1, 11.0, 12.0)]
    found = json.loads(chrome_trace(spans))["traceEvents"]
    assert [event["args"]["name"] for event in found if event["ph"] == "M"] == ["pipeline 0", "stage 0"]
    first = next(event for event in found if event["ph"] == "X")
    assert (first["name"], first["ts"], first["dur"], first["pid"], first["tid"]) == ("forward 3.1", 0, 500_000, 0, 0)
    assert utilisation(spans) == {stage(0, 0): 0.75}

"""What a controller remembers: every field of it comes back, through storage that fails for a moment too."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.job.order import JobOrder, first_memory
from actors.shell.versions import this_code
from actors.storage import retry as patience
from actors.storage.folder import Folder, checkpoint_name, part_name, seal, write_part
from actors.storage.keeper import Keeper
from raysync.address import COORDINATOR, shard, worker
from raysync.control.budgets import Cause, Retries
from raysync.control.controller_memory import Memory, StopWanted, read, written
from raysync.control.incidents import Incidents
from raysync.control.states import JobState
from raysync.engine.coordinator import Coordinator
from raysync.knobs import Knobs, initial_knobs, overlaid, turn
from raysync.spec import parse_spec
from tests.jobs import job

KNOBS = Knobs(3, {"delta": math.inf, "workers": 4, "lr": 0.5, "staleness_bound": None, "pause": True})
SAMPLES: dict[str, Any] = {
    "job": "digits-1",
    "state": JobState.RECOVERING,
    "reason": "shard/0 died",
    "started_s": 12.5,
    "paused_by": "anna",
    "step": 77,
    "metrics": {"train/loss": 0.25, "bad": None},
    "runs": {"link": "direct", "devices": ["cpu"]},
    "checkpoint": "/x/checkpoint_000003",
    "resume": "/x/checkpoint_000002",
    "knobs": msgspec.structs.replace(KNOBS, version=2),
    "asked": KNOBS,
    "early": msgspec.structs.replace(KNOBS, version=1),
    "view": 5,
    "members": frozenset({worker(0), worker(2)}),
    "leaving": frozenset({worker(2)}),
    "stop": StopWanted("enough", False, 99.5),
    "retries": Retries(
        {
            Cause.WORKER: Incidents(2, 3.5, frozenset({worker(0), worker(1)}), "out of memory"),
            Cause.DIVERGENCE: Incidents(1, 9.0, frozenset(), "the loss is NaN"),
        }
    ),
    "incarnation": 4,
    "successions": 2,
    "is_succeeded": True,
    "replicas": 1,
    "generations": 3,
    "servers": (shard(0), shard(5)),
    "backups": (shard(2), None),
    "absent": (worker(3),),
    "next_worker": 6,
    "reserved": 5000,
    "node": "abc",
}


def test_every_field_comes_back() -> None:
    assert SAMPLES.keys() == {*Memory.__struct_fields__}, "a field that is added here needs a sample"
    memory, plain = Memory(**SAMPLES), Memory(job="", knobs=KNOBS, asked=KNOBS, early=KNOBS)
    for name in Memory.__struct_fields__:
        if name != "asked":
            assert getattr(memory, name) != getattr(plain, name), f"{name} must differ from its default to be tested"
    again = read(written(memory))
    for name in Memory.__struct_fields__:
        assert getattr(again, name) == getattr(memory, name), name


def test_it_is_plain_json_whatever_it_holds() -> None:
    memory = Memory(**{**SAMPLES, "metrics": {"loss": math.nan, "other": math.inf}, "runs": {"what": Path("/x")}})

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    found = json.loads(written(memory), parse_constant=refuse)
    assert (found["state"], found["reason"]) == ("RECOVERING", "shard/0 died"), "what a gateway reads"
    assert found["metrics"] == {"loss": None, "other": None}
    assert found["knobs"]["values"]["delta"] == "Infinity"


def test_what_an_older_raysync_wrote_is_read() -> None:
    old = {"job": "x", "state": "RUNNING", "reason": "2 workers train", "step": 3, "metrics": {}, "checkpoint": None}
    old |= {"knobs": {"version": 1, "values": {"lr": 0.5, "pause": False}}, "view": 2, "members": [0, 1]}
    memory = read(json.dumps({**old, "leaving": [], "stop": "enough", "runs": {}}).encode())
    assert (memory.state, memory.members, memory.asked.version) == (
        JobState.RUNNING,
        frozenset({worker(0), worker(1)}),
        1,
    )
    assert memory.stop is not None
    assert memory.stop.reason == "enough"


class FailingFolder(Folder):
    """A folder that cannot be written to for a while."""

    failures = 0

    def write(self, name: str, data: bytes | memoryview) -> None:
        if self.failures > 0:
            self.failures -= 1
            raise OSError("no space left on device")
        super().write(name, data)


def test_a_keeper_outlives_storage_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = FailingFolder(str(tmp_path))
    keeper = Keeper(folder, lambda: Memory(**SAMPLES))
    keeper._backoff._first_s = 0.0
    assert keeper.save()
    folder.failures, keeper.memory.step = 2, 78
    assert not keeper.save(), "nobody who only wants it saved is hurt"
    keeper.catch_up()
    assert read(folder.read("status.json")).step == 77
    keeper.catch_up()
    assert read(folder.read("status.json")).step == 78
    slept: list[float] = []
    monkeypatch.setattr(patience.time, "sleep", slept.append)
    folder.failures, keeper.memory.step = 3, 79
    keeper.insist()
    assert read(folder.read("status.json")).step == 79
    assert slept == [0.2, 0.5]


def test_patience_has_an_end_and_waits_longer_each_time() -> None:
    slept, tried = list[float](), list[int]()

    def fail() -> None:
        tried.append(1)
        raise OSError("still away")

    with pytest.raises(OSError, match="still away"):
        patience.patiently(fail, "writing", (0.1, 0.2), slept.append)
    assert (slept, len(tried)) == ([0.1, 0.2], 3)
    now_s = [100.0]
    backoff = patience.Backoff(0.5, 2.0, lambda: now_s[0])
    assert [backoff.failed() for _ in range(4)] == [0.5, 1.0, 2.0, 2.0]
    assert not backoff.is_due
    now_s[0] = 103.0
    assert (backoff.is_due, backoff.failing_s) == (True, 3.0)
    backoff.succeeded()
    assert (backoff.is_due, backoff.failing_s, backoff.failed()) == (True, 0.0, 0.5)


def test_numbers_are_claimed_before_they_are_used(tmp_path: Path) -> None:
    folder = FailingFolder(str(tmp_path))
    keeper = Keeper(folder, lambda: Memory(**{**SAMPLES, "reserved": 0}))
    for sequence in range(3):
        keeper.claim(sequence)
    assert read(folder.read("status.json")).reserved > 100, "some ahead: not every event costs a write"
    folder.failures = 1
    with pytest.raises(OSError, match="numbered"):
        keeper.claim(keeper.memory.reserved)
    assert read(folder.read("status.json")).reserved == keeper.memory.reserved


def test_a_job_that_continues_a_checkpoint_begins_with_its_knobs(tmp_path: Path) -> None:
    spec = job({"kind": "selsync", "delta": 0.3})
    core = Coordinator(COORDINATOR, spec)
    core.board.turn({"pause": True}, None)
    core.board.apply()
    core.board.turn({"pause": True}, None)
    folder = Folder(str(tmp_path))
    write_part(folder.at(checkpoint_name(1)), COORDINATOR, core.state_dict())
    seal(folder, 1, [part_name(COORDINATOR)], {"workers": [0, 1], "elapsed_s": 3.0})
    resume = f"{tmp_path}/{checkpoint_name(1)}"
    order = JobOrder("new", spec.model_dump_json(), b"", this_code(), str(tmp_path / "new"), resume=resume)
    memory = first_memory(order, spec)
    assert (memory.resume, memory.checkpoint) == (resume, resume)
    assert (memory.asked.version, memory.asked.values["pause"]) == (3, False), "versions go on, the pause does not"
    early = turn(spec, initial_knobs(spec), {"delta": 0.9})
    assert overlaid(memory.asked, memory.early, early) == Knobs(4, {**memory.asked.values, "delta": 0.9})
    broken = msgspec.structs.replace(order, resume=f"{tmp_path}/nowhere")
    assert first_memory(broken, spec).asked == initial_knobs(spec), "the launch tells what is wrong with it"


@pytest.mark.parametrize(
    ("asked", "before", "after", "expected"),
    [
        ((0, 0.3), (0, 0.3), (2, 0.5), (2, 0.5)),
        ((0, 0.3), (0, 0.3), (0, 0.3), (0, 0.3)),
        ((5, 0.7), (1, 0.5), (1, 0.5), (5, 0.7)),  # taken before: the later turn stays
        ((5, 0.7), (1, 0.5), (2, 0.5), (6, 0.7)),  # turned there and back
        ((3, 0.3), (0, 0.3), (1, 0.4), (4, 0.4)),
    ],
)
def test_turns_made_elsewhere_are_laid_over(
    asked: tuple[int, float], before: tuple[int, float], after: tuple[int, float], expected: tuple[int, float]
) -> None:
    def knobs(version: int, delta: float) -> Knobs:
        return Knobs(version, {"delta": delta, "pause": False})

    assert overlaid(knobs(*asked), knobs(*before), knobs(*after)) == knobs(*expected)


def test_a_spec_with_infinite_delta_is_remembered() -> None:
    spec = parse_spec({"task": {"kind": "digits"}, "strategy": {"kind": "selsync", "delta": "inf"}})
    initial = initial_knobs(spec)
    memory = Memory(job="x", knobs=initial, asked=initial, early=initial)
    assert read(written(memory)).asked.values["delta"] == math.inf

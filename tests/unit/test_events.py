"""Events cross processes, files and versions: every kind as it was told, unknown ones whole."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec
import pytest

from actors.storage.folder import Folder
from actors.storage.journal import Journal, all_records
from raysync.engine.coordinator.event_log import EventLog
from raysync.events import BY_KIND, AnyEvent, Body, CheckpointTaken, Decision, Event, Metrics, Notice, body_of

MEMBERS: tuple[type[AnyEvent], ...] = get_args(AnyEvent)
STRANGE = Event(sequence=7, kind="merger", step=3, data={"with": "job-2", "deep": {"a": [1, None]}})


def example(kind: Any) -> Any:
    """Return a value of a field's type."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (dict, Mapping):
        return {"train/loss": example(parts[1])}
    if origin is list:
        return [example(parts[0])]
    if parts:
        return example(parts[0])
    return {str: "x", int: 3, float: 0.5, bool: True}.get(kind) or next(iter(kind))


def filled(member: type[AnyEvent]) -> AnyEvent:
    """Return a member with a value in every field."""
    return member(**{field.name: example(field.type) for field in msgspec.structs.fields(member)})


def told(body: AnyEvent) -> Event:
    log = EventLog()
    log.add(body, step=4, knob_version=2, worker=1)
    return log.take()[0]


@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.kind)
def test_a_kind_comes_through_as_it_was_told(member: type[AnyEvent]) -> None:
    body = filled(member)
    event = told(body)
    assert (event.kind, event.body) == (member.kind, body)
    for again in (
        msgspec.json.decode(msgspec.json.encode(event), type=Event),
        msgspec.msgpack.decode(msgspec.msgpack.encode(event), type=Event),
        pickle.loads(pickle.dumps(event)),
    ):
        assert (again, again.body) == (event, body)


@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.kind)
def test_a_kind_of_another_version_is_read_as_far_as_it_is_known(member: type[AnyEvent]) -> None:
    body = filled(member)
    more = {**body.data, "unheard_of": "later"}
    assert body_of(member.kind, more) == body, "fields of a newer version are passed over"
    if member is not Metrics:
        assert body_of(member.kind, {}) is None, "what cannot be understood is no reason to fail"


def test_kinds_are_given_once_and_say_what_they_are() -> None:
    assert len(BY_KIND) == len(MEMBERS)
    assert [kind for kind, body in BY_KIND.items() if not (body.__doc__ or "").rstrip().endswith(".")] == []
    assert all(issubclass(member, Body) for member in MEMBERS)


def test_an_unknown_kind_passes_through_a_journal_whole(tmp_path: Path) -> None:
    journal = Journal(Folder(str(tmp_path)))
    journal.add(told(Decision(True, "all do", 0)))
    journal.add(STRANGE)
    journal.close()
    line = b'{"sequence":2,"kind":"snapshot","time_s":1.0,"data":{"snapshot":1,"round":3},"shape":"newer"}\n'
    path = tmp_path / "events.jsonl"
    path.write_bytes(path.read_bytes() + line)
    again = Journal(Folder(str(tmp_path)))
    assert (again.next_sequence, again.last_source) == (3, 7)
    again.close()
    found = all_records(Folder(str(tmp_path)))
    assert [event.kind for event in found] == ["decision", "merger", "snapshot"]
    assert (found[1].data, found[1].source, found[1].body) == (STRANGE.data, 7, None)
    assert (found[2].data, found[2].body) == ({"snapshot": 1, "round": 3}, None)


def test_metrics_are_numbers() -> None:
    data = {"train/loss": 0.5, "bad": None, "note": "x", "flag": True, "sync/rounds": 3}
    assert body_of("metrics", data) == Metrics({"train/loss": 0.5, "bad": None, "sync/rounds": 3})


def test_a_log_numbers_retracts_and_goes_on() -> None:
    log = EventLog()
    log.add(Notice("first"), 0, 0)
    log.add(CheckpointTaken(1, 3), 5, 0)
    log.retract()
    log.add(Notice("it could not be sealed"), 5, 0)
    again = EventLog()
    state = log.state_dict()
    state["events"] = [{"job": "digits", **event} for event in state["events"]]  # as it was written before
    again.load_state_dict(state)
    again.add(Notice("third"), 6, 1)
    events = again.take()
    assert [(event.sequence, event.step) for event in events] == [(0, 0), (1, 5), (2, 6)]
    assert events[1].body == Notice("it could not be sealed")
    assert again.take() == []

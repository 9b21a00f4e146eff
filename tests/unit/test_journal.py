"""The journal where storage fails, is elsewhere, or has lost something: no event is dropped, no number comes twice."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from actors.storage import folder as storage
from actors.storage.folder import Folder, checkpoint_name, part_name, seal, write_part, write_tensors
from actors.storage.journal import Journal, all_records, read_log, read_records
from actors.storage.pieces import SMALL_BYTES, pieces_of
from raysync.address import worker
from raysync.control.states import JobState
from raysync.errors import CheckpointError
from raysync.events import Event, StateChange
from tests.far import Far


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Far:
    """An object store under far://."""
    handler, resolve = Far(tmp_path / "far"), storage.resolve

    def resolved(uri: str) -> Any:
        return (handler.filesystem, uri.removeprefix("far://")) if uri.startswith("far://") else resolve(uri)

    monkeypatch.setattr(storage, "resolve", resolved)
    return handler


def event(sequence: int, kind: str = "metrics", **data: float) -> Event:
    told = data or {"train/loss": 1.0 / (sequence + 1)}
    return Event(sequence=sequence, kind=kind, time_s=float(sequence), step=sequence, data={**told})


def dies(journal: Journal) -> None:
    """End a journal's writer without another word."""
    journal._events.close()
    journal._lines.close()


def test_what_is_sent_to_a_remote_folder_grows_with_the_journal_not_with_its_square(far: Far) -> None:
    folder = Folder("far://job")
    assert not folder.is_local
    journal, numbers, after = Journal(folder), itertools.count(), list[int]()
    for _ in range(8):
        for _ in range(50):  # fifty flushes, as every two seconds
            for _ in range(40):
                journal.add(event(next(numbers)))
            journal.lines([f"2026-01-01T00:00:00 worker/0 | {'x' * 100}"] * 5)
            journal.flush()
        after.append(far.written_bytes)
    per_stretch = [b - a for a, b in itertools.pairwise(after)]
    # Before, the last eighth cost fifteen times the first: everything was sent again each time.
    assert max(per_stretch) < 1.5 * min(per_stretch), per_stretch
    journal.close()
    records = all_records(folder)
    assert [record.sequence for record in records] == list(range(8 * 50 * 40))
    assert len(pieces_of(folder, "events.jsonl")) > 3, "it is in pieces"
    assert len(read_log(folder, None, 10_000).lines) == 2000
    page, lines = read_log(folder, 0), 0
    while page.lines:
        lines, page = lines + len(page.lines), read_log(folder, page.offset)
    assert lines == 2000
    pages = read_records(folder, 0)
    assert read_records(folder, pages.offset).records[0].sequence == pages.records[-1].sequence + 1


def test_a_remote_journal_goes_on_where_it_was_and_what_it_lost_is_not_numbered_again(far: Far) -> None:
    folder, claimed = Folder("far://job"), list[int]()
    journal = Journal(folder, claim=claimed.append)
    for number in range(2000):
        journal.add(event(number))
        if number % 30 == 0:
            journal.flush()
    journal.flush()
    small = pieces_of(folder, "events.jsonl")[-1]
    for number in range(2000, 2010):
        journal.add(event(number))  # and its machine is gone before they are copied
    assert claimed == list(range(2010)), "each number is claimed before it is used"
    dies(journal)

    again = Journal(folder, first_sequence=2010)
    assert (again.next_sequence, again.last_source, again.step) == (2010, 1999, 1999)
    again.add(event(2000))  # the coordinator still has it: it gets a new number
    again.flush()
    records = all_records(folder)
    assert [record.sequence for record in records] == [*range(2000), 2010]
    assert [record.source for record in records] == list(range(2001))
    assert small.end - small.start < SMALL_BYTES
    assert pieces_of(folder, "events.jsonl")[-1].start == small.start, "the small last piece was written again, longer"
    again._recent.clear()
    again._recent.append(records[-1])
    assert [record.sequence for record in again.after(1998, 5)] == [1999, 2010], "found on disk across the gap"
    dies(again)
    third = Journal(folder)
    assert third.next_sequence == 2011
    third.close()


def test_a_journal_that_was_one_remote_file_is_continued(far: Far, tmp_path: Path) -> None:
    here = Journal(Folder(str(tmp_path / "here")))
    for number in range(3):
        here.add(event(number))
    here.close()
    folder = Folder("far://job")
    folder.write("events.jsonl", (tmp_path / "here" / "events.jsonl").read_bytes() + b'{"torn')
    again = Journal(folder)
    again.add(event(3))
    again.close()
    assert [record.sequence for record in all_records(folder)] == [0, 1, 2, 3]


def test_a_coordinator_that_counts_anew_is_heard_after_the_controller_came_back_too(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    journal = Journal(folder)
    journal.begin(1)
    for number in range(5):
        journal.add(event(number))
    journal.begin(2)  # back to a checkpoint: the new coordinator continues from number 2
    dies(journal)
    again = Journal(folder)  # and the controller dies before it hears of it
    again.begin(2)
    assert again.last_source == -1, "the coordinator is not told to forget what nobody has heard"
    for number in (2, 3, 4, 4):
        again.add(event(number))
    again.note(StateChange(JobState.RUNNING, "it trains"), 1.0)
    dies(again)
    third = Journal(folder)
    third.begin(2)
    third.close()
    assert (third.incarnation, third.last_source) == (2, 4)
    records = all_records(folder)
    assert [record.sequence for record in records] == list(range(9))
    assert [(record.incarnation, record.source) for record in records[4:]] == [
        (1, 4),
        (2, 2),
        (2, 3),
        (2, 4),
        (2, None),
    ]


class FullDisk:
    """A file that takes only half a line, and then nothing, until there is room again."""

    def __init__(self, file: Any) -> None:
        self._file, self.is_full = file, True

    def write(self, data: bytes) -> int:
        return int(self._file.write(data[: len(data) // 2] if self.is_full else data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_a_full_disk_costs_no_event_and_leaves_no_half_line(tmp_path: Path) -> None:
    journal = Journal(Folder(str(tmp_path)))
    journal.add(event(0))
    disk = FullDisk(journal._events)
    journal._events = disk  # type: ignore[assignment]
    with pytest.raises(OSError, match="only a part"):
        journal.add(event(1))
    assert journal.last_source == 0, "not heard: the coordinator keeps it"
    journal.note(StateChange(JobState.RUNNING, "it trains"), 1.0)
    journal.note(StateChange(JobState.PAUSED, "it waits"), 2.0)
    assert [record.sequence for record in journal.after(-1, 10)] == [0], "nobody hears what is not written"
    disk.is_full = False
    journal.add(event(1))
    journal.close()
    records = all_records(Folder(str(tmp_path)))
    assert [(record.sequence, record.kind, record.source) for record in records] == [
        (0, "metrics", 0),
        (1, "state", None),
        (2, "state", None),
        (3, "metrics", 1),
    ]
    assert [record.data["state"] for record in records[1:3]] == ["RUNNING", "PAUSED"]


def test_what_is_told_together_is_written_at_once_or_not_at_all(tmp_path: Path) -> None:
    journal = Journal(Folder(str(tmp_path)))
    journal.add(event(0))
    disk = FullDisk(journal._events)
    journal._events = disk  # type: ignore[assignment]
    with pytest.raises(OSError, match="only a part"):
        journal.add(*map(event, range(1, 40)))
    assert journal.last_source == 0
    assert [record.sequence for record in all_records(Folder(str(tmp_path)))] == [0], "of half a page nothing is left"
    disk.is_full = False
    journal.add(*map(event, range(50)))
    journal.close()
    records = all_records(Folder(str(tmp_path)))
    assert [(record.sequence, record.source) for record in records] == [(number, number) for number in range(50)]


def test_a_store_that_does_not_answer_is_an_oserror_and_later_it_is_all_there(far: Far) -> None:
    folder = Folder("far://job")
    journal = Journal(folder)
    journal.add(event(0))
    far.fails = lambda path: True
    with pytest.raises(OSError, match="does not answer"):
        journal.flush()
    journal.add(event(1))  # written here, to be copied later
    far.fails = lambda path: False
    journal.close()
    assert [record.sequence for record in all_records(folder)] == [0, 1]
    assert [path.name.startswith("events.out") for path in (far._root / "job" / "tensorboard").iterdir()] == [True]


def test_tensors_that_cannot_be_written_are_an_oserror(far: Far) -> None:
    """torch itself says `unexpected pos 64 vs 0`."""
    folder = Folder("far://job")
    opened: list[str] = []

    def fails(path: str) -> bool:
        opened.append(path)
        return len(opened) > 6

    far.fails = fails
    with pytest.raises(OSError, match="does not answer"):
        write_tensors(folder, "worker-0.pt", {"flat": torch.zeros(100_000)})
    far.fails = lambda path: False
    with pytest.raises(RuntimeError, match="my own"), folder.writing("x"):
        raise RuntimeError("my own mistake")


def test_a_complete_checkpoint_is_not_written_to(tmp_path: Path) -> None:
    job = Folder(str(tmp_path))
    folder = job.at(checkpoint_name(1))
    write_part(folder, worker(0), {"flat": torch.zeros(1)})
    seal(job, 1, [part_name(worker(0))], {"step": 1})
    before = folder.read(part_name(worker(0)))
    for write in (
        lambda: write_part(folder, worker(0), {"flat": torch.ones(1)}),
        lambda: seal(job, 1, [part_name(worker(0))], {"step": 2}),
    ):
        with pytest.raises(CheckpointError, match="is complete and is not written to"):
            write()
    assert folder.read(part_name(worker(0))) == before

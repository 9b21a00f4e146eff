"""A job's folder: files whole or absent, checkpoints that exist only once complete, retention, and the journal."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from actors.storage.folder import (
    Folder,
    checkpoint_name,
    completed,
    part_name,
    read_manifest,
    read_part,
    retain,
    seal,
    write_part,
    write_tensors,
)
from actors.storage.journal import Journal
from actors.storage.saved import damage, newest_sound, saved_state
from raysync.address import COORDINATOR, Address, shard, worker
from raysync.control.states import JobState
from raysync.engine.server.shard import Shard
from raysync.errors import CheckpointError, StorageError
from raysync.events import Event, StateChange
from raysync.sim import Simulation
from tests.jobs import final_vector, job, workload


@pytest.fixture(params=["path", "uri"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    return Folder(str(tmp_path / "job") if request.param == "path" else f"file://{tmp_path}/job")


def checkpoint(job: Folder, number: int) -> None:
    place = job.at(checkpoint_name(number))
    state = {"flat": torch.arange(3.0), "pending": {"0/delta": (1, b"bytes")}, "none": None}
    sums = write_part(place, worker(0), state) | write_part(
        place, COORDINATOR, {"own": {"round": 3}, "reports": {4: [1.0]}}
    )
    seal(job, number, [*sums], {"step": number, "spec": {}, "checksums": sums})


def test_what_is_written_is_read_and_nothing_half_is_seen(folder: Folder) -> None:
    folder.write("a/b", b"first")
    with pytest.raises(TypeError), folder.writing("a/b") as stream:
        stream.write(None)
    assert folder.read("a/b") == b"first"
    assert folder.size("a/absent") is None


def test_parts_come_back_as_they_were(folder: Folder) -> None:
    checkpoint(folder, 1)
    place = folder.at(checkpoint_name(1))
    part = read_part(place, worker(0))
    assert torch.equal(part["flat"], torch.arange(3.0))
    assert part["pending"] == {"0/delta": (1, b"bytes")}
    assert read_part(place, COORDINATOR) == {"own": {"round": 3}, "reports": {4: [1.0]}}


def test_a_checkpoint_exists_only_once_all_of_it_does(folder: Folder) -> None:
    place = folder.at(checkpoint_name(1))
    write_part(place, worker(0), {"flat": torch.zeros(1)})
    with pytest.raises(CheckpointError, match=r"shard-0\.pt are missing"):
        seal(folder, 1, [part_name(worker(0)), part_name(shard(0))], {})
    assert completed(folder) == []
    with pytest.raises(CheckpointError, match="never completed"):
        read_manifest(place)
    checkpoint(folder, 2)
    with pytest.raises(CheckpointError, match=r"did you mean .*checkpoint_000002"):
        read_manifest(folder)
    place = folder.at(checkpoint_name(2))
    place.write(part_name(worker(0)), b"cut short")
    with pytest.raises(CheckpointError, match="not as long as the manifest says"):
        read_manifest(place)


def test_the_newest_are_kept_and_what_was_never_completed_goes(folder: Folder) -> None:
    for number in (1, 3, 4, 5):
        checkpoint(folder, number)
    write_part(folder.at(checkpoint_name(2)), worker(0), {})  # never completed
    write_part(folder.at(checkpoint_name(6)), worker(0), {})  # perhaps being written
    assert retain(folder, 2) == [checkpoint_name(number) for number in (1, 2, 3)]
    assert completed(folder) == [checkpoint_name(4), checkpoint_name(5)]
    assert folder.folders("checkpoint_")[-1] == checkpoint_name(6)


def flip(folder: Folder, name: str) -> None:
    """Change one bit of a file, and nothing of its length."""
    data = bytearray(folder.read(name))
    data[len(data) // 2] ^= 1
    folder.write(name, bytes(data))


@pytest.mark.parametrize("address", [worker(0), COORDINATOR], ids=str)
def test_a_part_with_a_wrong_checksum_is_not_read(folder: Folder, address: Address) -> None:
    checkpoint(folder, 1)
    place = folder.at(checkpoint_name(1))
    assert damage(place) is None
    flip(place, part_name(address))
    with pytest.raises(CheckpointError, match=f"{part_name(address)} is damaged: its checksum is not the manifest's"):
        read_part(place, address)
    assert read_manifest(place), "as long as it was"
    assert part_name(address) in str(damage(place))


def test_the_newest_sound_checkpoint_is_found_and_what_is_wrong_with_newer_ones_told(folder: Folder) -> None:
    for number in range(1, 6):
        checkpoint(folder, number)
    assert newest_sound(folder) == (checkpoint_name(5), {})
    flip(folder.at(checkpoint_name(5)), part_name(worker(0)))
    folder.at(checkpoint_name(4)).write(part_name(COORDINATOR), b"short")
    folder.at(checkpoint_name(3)).delete_file(part_name(COORDINATOR))
    folder.at(checkpoint_name(6)).write(part_name(COORDINATOR), b"never completed")
    found, wrong = newest_sound(folder)
    assert found == checkpoint_name(2)
    assert sorted(wrong) == [checkpoint_name(number) for number in (3, 4, 5)]
    assert "checksum" in wrong[checkpoint_name(5)]
    assert "long" in wrong[checkpoint_name(4)]


def test_the_last_whole_checkpoint_is_never_cleared_away(folder: Folder) -> None:
    for number in (1, 2):
        checkpoint(folder, number)
    for number in (3, 4):
        checkpoint(folder, number)
        folder.at(checkpoint_name(number)).write(part_name(worker(0)), b"short")
    retain(folder, 1)
    assert checkpoint_name(2) in completed(folder)
    assert newest_sound(folder)[0] == checkpoint_name(2)
    assert checkpoint_name(1) not in completed(folder)


def test_a_job_of_the_simulator_goes_on_from_the_last_sound_checkpoint_in_its_folder(folder: Folder) -> None:
    """What is written is what a core gave; a bit that has changed since costs one checkpoint, not the job."""
    spec = job(
        {"kind": "selsync", "delta": 0.03, "warmup_steps": 2}, scale={"shards": 2}, checkpoint={"every_rounds": 3}
    )
    whole = Simulation(spec, workload=workload(spec))
    whole.run()
    numbers = sorted(whole.checkpoints)
    for number in numbers:
        place, sums = folder.at(checkpoint_name(number)), {}
        for who, state in whole.checkpoints[number].items():
            sums |= write_part(place, Address.parse(who), state)
        seal(folder, number, [*sums], {"checksums": sums})
    flip(folder.at(checkpoint_name(numbers[-1])), part_name(shard(1)))
    found, _ = newest_sound(folder)
    assert found == checkpoint_name(numbers[-2])
    parts = {who: read_part(folder.at(found), Address.parse(who)) for who in whole.checkpoints[numbers[-2]]}
    restored = Simulation.restore(spec, parts, workload=workload(spec))
    restored.run()
    assert torch.equal(final_vector(whole), final_vector(restored))


@pytest.mark.parametrize("stages", [1, 2])
def test_each_core_finds_its_state_whatever_the_number_of_shards(folder: Folder, stages: int) -> None:
    scale = {"workers": 2, "stages": stages, "shards": 2, "block_bytes": 1024}
    whole = job(
        {"kind": "local_sgd", "sync_every": 3},
        task={"kind": "digits", "hidden": [16, 16]},
        scale=scale,
        checkpoint={"every_rounds": 2},
        **({"schedule": {"kind": "gpipe"}} if stages > 1 else {}),
    )
    first = Simulation(whole, workload=workload(whole))
    first.run()
    parts = first.checkpoints[2]
    place, sums = folder.at(checkpoint_name(2)), {}
    for who, state in parts.items():
        sums |= write_part(place, Address.parse(who), state)
    for name in ("model.pt",) if stages == 1 else ("model.0-of-2.pt", "model.1-of-2.pt"):
        sums[name] = write_tensors(place, name, {"weight": torch.zeros(1)})
    seal(folder, 2, [*sums], {"checksums": sums})
    assert saved_state(place, worker(7), 2) is None, "it was not there"
    for shards in (1, 2, 3):
        other = whole.model_copy(update={"scale": whole.scale.model_copy(update={"shards": shards})})
        found = {who: Address.parse(who) for who in parts if not who.startswith("shard")}
        found |= {str(shard(slot).at(at)): shard(slot).at(at) for slot in range(shards) for at in range(stages)}
        states = {who: saved_state(place, address, shards) for who, address in found.items()}
        again = Simulation.restore(other, states, workload=workload(whole))
        again.run()
        assert _values(again).keys() == _values(first).keys()
        assert all(torch.equal(values, _values(again)[key]) for key, values in _values(first).items())


def _values(simulation: Simulation) -> dict[tuple[int, int], torch.Tensor]:
    """Return what the servers hold, by stage and block."""
    shards = [core for core in simulation.cores.values() if isinstance(core, Shard)]
    return {(core.address.stage, index): block.x for core in shards for index, block in core.blocks.items()}


def test_a_checkpoint_runs_nothing_when_it_is_read(folder: Folder) -> None:
    import pickle

    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return print, ("boom",)

    place = folder.at("x")
    with place.writing(part_name(worker(0))) as stream:
        torch.save({"bomb": Bomb()}, stream)
    with pytest.raises(pickle.UnpicklingError):
        read_part(place, worker(0))


def event(sequence: int, **data: float) -> Event:
    return Event(sequence=sequence, kind="metrics", time_s=float(sequence), step=sequence, data={**data})


def test_a_journal_numbers_without_gaps_and_goes_on_after_a_crash(folder: Folder, tmp_path: Path) -> None:
    journal = Journal(folder)
    for number in range(3):
        journal.add(event(number, loss=1.0 / (number + 1), bad=float("nan")))
    journal.add(event(2, loss=9.0))  # said twice
    journal.note(StateChange(JobState.RUNNING, "it trains"), 3.0)
    journal.flush()
    path = tmp_path / "job" / "events.jsonl"
    path.write_bytes(path.read_bytes() + b'{"sequence": 4, "kin')  # torn by a crash

    again = Journal(folder)
    assert (again.next_sequence, again.last_source, again.latest["loss"]) == (4, 2, 1.0 / 3)
    again.add(event(3, loss=0.1))
    again.flush()
    lines = [msgspec.json.decode(line, type=Event) for line in path.read_bytes().splitlines()]
    assert [line.sequence for line in lines] == list(range(5))
    assert [line.source for line in lines] == [0, 1, 2, None, 3]
    again._recent.clear()
    again._recent.append(lines[-1])
    assert [record.sequence for record in again.after(1, 2)] == [2, 3], "older ones come from disk"
    again.close()
    journal.close()


def test_the_journal_feeds_tensorboard(folder: Folder, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    journal = Journal(folder)
    journal.add(event(0, **{"train/loss": 0.5, "eval/loss": 0.25}))
    journal.close()
    (file,) = (tmp_path / "job" / "tensorboard").iterdir()
    found = {
        value.tag: value.tensor.float_val[0]
        for entry in EventFileLoader(str(file)).Load()
        for value in entry.summary.value
    }
    assert found == {"train/loss": 0.5, "eval/loss": 0.25}


@pytest.mark.parametrize("uri", ["/proc/nowhere", "s3x://bucket"])
def test_a_place_that_cannot_be_used_is_named(uri: str) -> None:
    with pytest.raises(StorageError, match=f"storage {uri}.*give a folder"):
        Folder(uri).make()

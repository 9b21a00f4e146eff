"""A job's folder, on any file system pyarrow knows: the same URIs as Ray Train's `storage_path`.

    <storage_path>/<job>/job.json            what was asked for
                         status.json         how it goes or ended, and all a new controller needs to go on
                         events.jsonl        everything that happened, one JSON object per line
                         tensorboard/        the metrics again
                         logs.txt            every actor's lines, each with the actor's name
                         checkpoint_000012/  one file per core, model.pt, and manifest.json, written last
                         final/model.pt      the trained model's state_dict

Where files cannot grow, `events/` and `logs/` hold pieces of events.jsonl and logs.txt (`actors.storage.pieces`).

A checkpoint without manifest does not exist: whoever finds one may delete it. One with a manifest is never written to.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import msgspec
import pyarrow as pa
from pyarrow import fs

from actors.storage.checksums import Summed, checksum_of
from raysync.address import COORDINATOR, Address
from raysync.errors import CheckpointError, StorageError
from raysync.pipeline.cut import put_together
from raysync.spec import JobSpec

MANIFEST = "manifest.json"
MODEL = "model.pt"
FORMAT = 2


class Folder:
    """Files under one place, written whole or not at all."""

    def __init__(self, uri: str) -> None:
        self.filesystem, self.path = resolve(uri)
        self.uri = uri if "://" in uri else self.path
        """The same place from whatever folder it is looked at."""

    @property
    def is_local(self) -> bool:
        """Whether the folder is on this machine's own file system."""
        return isinstance(self.filesystem, fs.LocalFileSystem)

    def at(self, name: str) -> Folder:
        """Return a folder inside this one."""
        return Folder(f"{self.uri.rstrip('/')}/{name}")

    def make(self) -> None:
        """Make the folder, or say why it cannot be."""
        try:
            self.filesystem.create_dir(self.path, recursive=True)
        except (pa.ArrowException, OSError) as error:
            raise StorageError(self.uri, _first_line(error)) from error

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Write a file; readers see the old one or the new one."""
        with self.writing(name) as stream:
            stream.write(data)

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[Any]:
        """Give a stream for a file that appears, whole, when the context ends without an error."""
        target = f"{self.path}/{name}"
        written = f"{target}.part" if self.is_local else target  # an object store shows nothing before the end
        try:
            self.filesystem.create_dir(target.rsplit("/", 1)[0], recursive=True)
            with self.filesystem.open_output_stream(written) as stream:
                yield stream
            if written != target:
                self.filesystem.move(written, target)
        except (pa.ArrowException, RuntimeError) as error:
            # torch tells in words of its own that a stream failed; what failed is told by the stream.
            cause = error if isinstance(error, pa.ArrowException) else error.__context__
            if not isinstance(cause, pa.ArrowException | OSError):
                raise
            raise StorageError(f"{self.uri}/{name}", _first_line(cause)) from error

    def read(self, name: str) -> bytes:
        """Return a file's bytes."""
        with self.filesystem.open_input_stream(f"{self.path}/{name}") as stream:
            data: bytes = stream.read()
        return data

    def size(self, name: str) -> int | None:
        """Return how many bytes a file has; None if there is none."""
        info = self.filesystem.get_file_info(f"{self.path}/{name}")
        return info.size if info.type == fs.FileType.File else None

    def folders(self, prefix: str) -> list[str]:
        """Return the names of folders that begin with `prefix`, sorted."""
        found = self.filesystem.get_file_info(fs.FileSelector(self.path, allow_not_found=True))
        return sorted(info.base_name for info in found if info.base_name.startswith(prefix))

    def delete(self, name: str) -> None:
        """Delete a folder and all it holds, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self.filesystem.delete_dir(f"{self.path}/{name}")

    def delete_file(self, name: str) -> None:
        """Delete a file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self.filesystem.delete_file(f"{self.path}/{name}")


def resolve(uri: str) -> tuple[fs.FileSystem, str]:
    """Return the file system and the path on it that a URI or a local path stands for."""
    if "://" in uri:
        try:
            filesystem, path = fs.FileSystem.from_uri(uri)
        except (pa.ArrowException, OSError) as error:
            raise StorageError(uri, _first_line(error)) from error
        return filesystem, path
    return fs.LocalFileSystem(), str(Path(uri).expanduser().absolute())


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


# Checkpoints


def checkpoint_name(number: int) -> str:
    """Return the folder of a checkpoint."""
    return f"checkpoint_{number:06d}"


def newest_number(job: Folder) -> int:
    """Return the highest number of a checkpoint a job's folder has, complete or not; 0 if it has none."""
    numbers = [name.removeprefix("checkpoint_") for name in job.folders("checkpoint_")]
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


def part_name(address: Address) -> str:
    """Return the file of a core's part."""
    return "coordinator.msgpack" if address == COORDINATOR else f"{str(address).replace('/', '-')}.pt"


def write_part(folder: Folder, address: Address, state: Any) -> dict[str, str]:
    """Write a core's state: tensors and plain data; return the file with its checksum."""
    check_open(folder)
    name = part_name(address)
    if address != COORDINATOR:
        return {name: write_tensors(folder, name, state)}
    data = msgspec.msgpack.encode(state)
    folder.write(name, data)
    return {name: checksum_of(data)}


def read_part(folder: Folder, address: Address) -> Any:
    """Return what `write_part` was given; runs nothing that the bytes might ask for. Raises `CheckpointError` if they
    are not those that were written.
    """
    name = part_name(address)
    data = read_checked(folder, name)
    if address == COORDINATOR:
        return msgspec.msgpack.decode(data)
    import torch

    return torch.load(io.BytesIO(data), weights_only=True)


def read_checked(folder: Folder, name: str) -> bytes:
    """Return the bytes of a file of a checkpoint, if they are those that were written."""
    data, wanted = folder.read(name), _checksums(folder).get(name)
    if wanted is not None and checksum_of(data) != wanted:
        raise CheckpointError(folder.uri, f"{name} is damaged: its checksum is not the manifest's")
    return data


def _checksums(folder: Folder) -> dict[str, str]:
    """Return the checksums of a checkpoint's files; none for one of an older raysync, or without a manifest."""
    if folder.size(MANIFEST) is None:
        return {}
    found: dict[str, str] = json.loads(folder.read(MANIFEST)).get("checksums", {})
    return found


def write_tensors(folder: Folder, name: str, state: Any) -> str:
    """Write plain data with tensors as torch does, without a copy in memory; return the file's checksum."""
    import torch

    with folder.writing(name) as stream:
        summed = Summed(stream)
        torch.save(state, cast("IO[bytes]", summed))
    return summed.checksum


def model_names(spec: JobSpec) -> list[str]:
    """Return the files of a checkpoint that hold its model: one, or one for every stage."""
    return _model_names(spec.scale.stages)


def _model_names(stages: int) -> list[str]:
    return [MODEL] if stages == 1 else [f"model.{stage}-of-{stages}.pt" for stage in range(stages)]


def read_model(folder: Folder) -> dict[str, Any]:
    """Return the state_dict of the model in a folder, put together from its stages where there are several."""
    if folder.size(MODEL) is not None:
        return _state_dict(folder, MODEL)
    count = sum(name.startswith("model.") for name in read_manifest(folder)["files"])
    return put_together([_state_dict(folder, name) for name in _model_names(count)])


def _state_dict(folder: Folder, name: str) -> dict[str, Any]:
    import torch

    state: dict[str, Any] = torch.load(io.BytesIO(read_checked(folder, name)), weights_only=True)
    return state


def check_open(folder: Folder) -> None:
    """Raise if a checkpoint is complete: from then on it is not written to."""
    if folder.size(MANIFEST) is not None:
        raise CheckpointError(folder.uri, "is complete and is not written to any more")


def seal(job: Folder, number: int, files: list[str], facts: dict[str, Any]) -> None:
    """Make a checkpoint exist: all its files are there, so its manifest may be."""
    folder = job.at(checkpoint_name(number))
    check_open(folder)
    sizes = {name: folder.size(name) for name in files}
    missing = [name for name, size in sizes.items() if size is None]
    if missing:
        raise CheckpointError(
            folder.uri,
            f"cannot be completed, {', '.join(missing)} are missing; workers on several machines need a folder all of "
            "them see, or a URI such as s3://...",
        )
    manifest = {"format": FORMAT, "number": number, **facts, "files": sizes}
    folder.write(MANIFEST, json.dumps(manifest, indent=1).encode())


def read_manifest(folder: Folder) -> dict[str, Any]:
    """Return the manifest of a complete checkpoint, or say what is wrong with it."""
    if folder.size(MANIFEST) is None:
        complete = completed(folder)
        hint = f"; did you mean {folder.uri.rstrip('/')}/{complete[-1]}?" if complete else ""
        raise CheckpointError(folder.uri, f"there is no {MANIFEST}: not a checkpoint, or never completed{hint}")
    manifest: dict[str, Any] = json.loads(folder.read(MANIFEST))
    if manifest.get("format") != FORMAT:
        raise CheckpointError(folder.uri, f"has format {manifest.get('format')}, this raysync reads {FORMAT}")
    damaged = [name for name, size in manifest["files"].items() if folder.size(name) != size]
    if damaged:
        raise CheckpointError(folder.uri, f"{', '.join(damaged)} are not as long as the manifest says")
    return manifest


def completed(job: Folder) -> list[str]:
    """Return the names of the complete checkpoints of a job, oldest first."""
    return [name for name in job.folders("checkpoint_") if job.at(name).size(MANIFEST) is not None]


def retain(job: Folder, keep: int) -> list[str]:
    """Delete all but the newest `keep` checkpoints, manifest first, and what was never completed before them; return
    what was deleted. One whose files are not all there, and as long as they were, does not count as kept.
    """
    whole = [name for name in completed(job) if _is_whole(job.at(name))]
    kept = set(whole[-keep:])
    newest = whole[-1] if whole else ""
    doomed = [name for name in job.folders("checkpoint_") if name not in kept and name < newest]
    for name in doomed:
        job.at(name).delete_file(MANIFEST)
        job.delete(name)
    return doomed


def _is_whole(folder: Folder) -> bool:
    try:
        return bool(read_manifest(folder))
    except (CheckpointError, ValueError):
        return False

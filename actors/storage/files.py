"""What may be taken along from a job's folder: the final model, complete checkpoints, and what stages did."""

from __future__ import annotations

import json
import os
import re

import pyarrow as pa
from pyarrow import fs

from actors.storage.folder import MANIFEST, Folder, completed
from raysync.errors import StorageError
from raysync.ports import FileSeen

_NAME = re.compile(r"(final|trace|checkpoint_[0-9]{6,9})/[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


def takeable(job: Folder) -> list[FileSeen]:
    """Return the files, in the order of their paths."""
    found = [FileSeen(f"final/{name}", "model", size) for name, size in _sizes(job, "final").items()]
    found += [FileSeen(f"trace/{name}", "trace", size) for name, size in _sizes(job, "trace").items()]
    for name in completed(job):
        manifest = json.loads(job.at(name).read(MANIFEST))
        there, wanted = _sizes(job, name), (*manifest["files"], MANIFEST)
        found += [
            FileSeen(f"{name}/{file}", "checkpoint", there[file], manifest["step"]) for file in wanted if file in there
        ]
    return sorted((file for file in found if _NAME.fullmatch(file.path)), key=lambda file: file.path)


def read_piece(job: Folder, name: str, offset: int, size: int) -> bytes:
    """Return a piece of a file; no name leads out of the job's folder."""
    if _NAME.fullmatch(name) is None or not _is_plain(job, name):
        raise StorageError(f"{job.uri}/{name}", "it is no file to be taken along")
    try:
        with job.filesystem.open_input_file(f"{job.path}/{name}") as file:
            data: bytes = file.read_at(size, offset)
    except (pa.ArrowException, OSError) as error:
        raise StorageError(f"{job.uri}/{name}", (str(error).splitlines() or [type(error).__name__])[0]) from error
    return data


def _sizes(job: Folder, folder: str) -> dict[str, int]:
    """Return the files of a folder with their sizes; none of links, which may lead anywhere."""
    selector = fs.FileSelector(f"{job.path}/{folder}", allow_not_found=True)
    found = [info for info in job.filesystem.get_file_info(selector) if info.type == fs.FileType.File]
    plain = [info for info in found if not info.base_name.endswith(".part")]
    return {info.base_name: info.size for info in plain if _is_plain(job, f"{folder}/{info.base_name}")}


def _is_plain(job: Folder, name: str) -> bool:
    """Return whether a file of a folder here is one itself, not a link."""
    if not job.is_local:
        return True
    return os.path.realpath(f"{job.path}/{name}") == f"{os.path.realpath(job.path)}/{name}"

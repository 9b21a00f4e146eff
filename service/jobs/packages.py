"""User code as a zip file: looked through before it is taken in, and unpacked where only its own folder can be hit.

Nothing of it is imported or run here. Headers may lie, so what counts are the bytes that really come out.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import io
import shutil
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from service.errors import EntrypointRefused, PackageError
from service.jobs.zip_count import count_entries

_OWN = ("raysync", "actors", "service", "tune_configs")
_CHUNK = 1 << 16
_MAX_NAME = 240
_MAX_RATIO = 200
"""A file may grow by so much; source code grows by five to ten."""
_RATIO_FROM_BYTES = 1 << 20


class Limits(NamedTuple):
    """What a package may hold."""

    max_files: int
    max_unpacked_bytes: int


def package_id(content: bytes) -> str:
    """Return the name of a package: the digest of its bytes."""
    return hashlib.sha256(content).hexdigest()


def inspect(content: bytes, limits: Limits) -> tuple[str, ...]:
    """Return the modules a package holds, or raise `PackageError`; every byte of it has been unpacked and counted."""
    with _opened(content, limits) as archive:
        members = _members(archive, limits)
        for _ in _bytes_of(archive, members, limits):
            pass
    return tuple(sorted({module for path, _ in members if (module := _module(path)) is not None}))


def unpack(content: bytes, target: Path, limits: Limits) -> Path:
    """Unpack a package into a folder of its own, whole or not at all; return the folder."""
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    scratch = Path(tempfile.mkdtemp(prefix=f"{target.name[:16]}.", dir=target.parent))  # others may unpack it as well
    try:
        with _opened(content, limits) as archive:
            for path, chunk in _bytes_of(archive, _members(archive, limits), limits):
                file = scratch / path
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("ab") as stream:
                    stream.write(chunk)
        with contextlib.suppress(OSError):
            scratch.rename(target)
        if not target.is_dir():
            raise PackageError(f"it could not be put into {target.parent}")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def remove_unknown(folder: Path, known: Collection[str]) -> None:
    """Remove unpacked packages that the books do not have any more, whichever service struck them from the books."""
    for path in folder.glob("?" * len(package_id(b""))):
        if path.name not in known:
            doomed = path.with_suffix(".gone")  # out of the way first: a package sent again is unpacked anew
            with contextlib.suppress(OSError):
                path.rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)


def check_entrypoint(entrypoint: str, modules: Sequence[str], allowed: Sequence[str]) -> None:
    """Raise unless an entrypoint names code the package holds, or code the operator has allowed."""
    module = entrypoint.partition(":")[0]
    if module in modules or any(fnmatch.fnmatchcase(entrypoint, pattern) for pattern in allowed):
        return
    if modules:
        raise EntrypointRefused(
            entrypoint, f"the package holds no module {module!r}; it holds {', '.join(modules[:10])}"
        )
    raise EntrypointRefused(
        entrypoint,
        "send its code along (--working-dir FOLDER, or POST /packages), or have the operator allow it with "
        "--allow-entrypoint PATTERN",
    )


def _opened(content: bytes, limits: Limits) -> zipfile.ZipFile:
    """Return a zip whose entries have been counted: opening makes an object of every one."""
    if (count := count_entries(content, limits.max_files)) > limits.max_files:
        raise PackageError(f"it holds {count} files or more; at most {limits.max_files} are taken")
    try:
        return zipfile.ZipFile(io.BytesIO(content))
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError) as error:
        raise PackageError(f"it is not a zip file ({error})") from error


def _members(archive: zipfile.ZipFile, limits: Limits) -> list[tuple[PurePosixPath, zipfile.ZipInfo]]:
    infos = archive.infolist()
    if len(infos) > limits.max_files:
        raise PackageError(f"it holds {len(infos)} files; at most {limits.max_files} are taken")
    files = [(_safe(info), info) for info in infos if not info.is_dir()]
    paths = [path for path, _ in files]
    if not files:
        raise PackageError("it holds no files")
    if len({*paths}) != len(paths):
        raise PackageError("it holds two files of one name")
    folders = {parent for path in paths for parent in path.parents}
    if folders & {*paths}:
        raise PackageError("it holds a file and a folder of one name")
    hidden = [name for name in _OWN if any(path.parts[0] in (name, f"{name}.py") for path in paths)]
    if hidden:
        raise PackageError(
            f"it holds {hidden[0]!r}, which would hide raysync's own package of that name in a worker: rename yours"
        )
    return files


def _safe(info: zipfile.ZipInfo) -> PurePosixPath:
    name, kind = info.filename, stat.S_IFMT(info.external_attr >> 16)
    path = PurePosixPath(name)
    wrong = "\\" in name or ":" in name or any(ord(letter) < 32 for letter in name) or len(name) > _MAX_NAME
    if wrong or path.is_absolute() or not path.parts or ".." in path.parts:
        raise PackageError(f"{name[:80]!r} is not a path inside a folder")
    if kind not in (0, stat.S_IFREG):
        raise PackageError(f"{name!r} is a link or a device; only files are taken")
    if info.flag_bits & 0x1:
        raise PackageError(f"{name!r} is encrypted")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise PackageError(f"{name!r} is packed in an unusual way; use plain zip (deflate)")
    return path


def _bytes_of(
    archive: zipfile.ZipFile, members: list[tuple[PurePosixPath, zipfile.ZipInfo]], limits: Limits
) -> Iterator[tuple[PurePosixPath, bytes]]:
    """Yield what comes out, piece by piece, and raise when it is too much."""
    total = 0
    for path, info in members:
        size = 0
        try:
            with archive.open(info) as stream:
                yield path, b""
                while chunk := stream.read(_CHUNK):
                    size, total = size + len(chunk), total + len(chunk)
                    if total > limits.max_unpacked_bytes:
                        raise PackageError(f"it unpacks to more than {limits.max_unpacked_bytes} bytes")
                    if size > _RATIO_FROM_BYTES and size > _MAX_RATIO * max(1, info.compress_size):
                        raise PackageError(f"{info.filename!r} unpacks to far more than it should")
                    yield path, chunk
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError) as error:
            raise PackageError(f"{info.filename!r} is damaged ({error})") from error


def _module(path: PurePosixPath) -> str | None:
    """Return the dotted name a file can be imported by, if it can."""
    if path.suffix != ".py":
        return None
    parts = path.with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join(parts) if parts and all(part.isidentifier() for part in parts) else None

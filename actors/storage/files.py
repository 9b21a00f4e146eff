"""Files by path, on this machine or on any file system pyarrow knows; pyarrow is loaded only where it is needed.

Both raise `OSError` for what may pass; what pyarrow says in its own words is an `OSError` here too.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol


class Entry(NamedTuple):
    """What a folder holds under a name; None instead of a size for a folder."""

    name: str
    size: int | None


class Files(Protocol):
    """What is asked of a file system."""

    is_local: bool

    @property
    def filesystem(self) -> Any:
        """The same as pyarrow's."""

    def make(self, path: str) -> None:
        """Make a folder, and those it lies in."""

    def writing(self, path: str) -> contextlib.AbstractContextManager[Any]:
        """Give a stream for a file that appears, whole, when the context ends without an error."""

    def read(self, path: str) -> bytes:
        """Return a file's bytes."""

    def read_at(self, path: str, size: int, offset: int) -> bytes:
        """Return up to so many bytes from a place in a file."""

    def size(self, path: str) -> int | None:
        """Return how many bytes a file has; None if there is none."""

    def entries(self, path: str) -> list[Entry]:
        """Return what a folder holds; nothing for one that is not there."""

    def delete_folder(self, path: str) -> None:
        """Delete a folder and all it holds, if it is there."""

    def delete(self, path: str) -> None:
        """Delete a file, if it is there."""


class LocalFiles:
    """The file system of this machine."""

    is_local = True

    @property
    def filesystem(self) -> Any:
        """The same as pyarrow's."""
        from pyarrow import fs

        return fs.LocalFileSystem()

    def make(self, path: str) -> None:
        """Make a folder, and those it lies in."""
        os.makedirs(path, exist_ok=True)

    @contextlib.contextmanager
    def writing(self, path: str) -> Iterator[Any]:
        """Write beside the file, then put it in its place: readers see the old one or the new one."""
        self.make(os.path.dirname(path))
        with open(f"{path}.part", "wb") as stream:
            yield stream
        os.replace(f"{path}.part", path)

    def read(self, path: str) -> bytes:
        """Return a file's bytes."""
        with open(path, "rb") as file:
            return file.read()

    def read_at(self, path: str, size: int, offset: int) -> bytes:
        """Return up to so many bytes from a place in a file."""
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(size)

    def size(self, path: str) -> int | None:
        """Return how many bytes a file has; None if there is none."""
        try:
            return os.stat(path).st_size if os.path.isfile(path) else None
        except FileNotFoundError:
            return None

    def entries(self, path: str) -> list[Entry]:
        """Return what a folder holds."""
        found = []
        with contextlib.suppress(FileNotFoundError), os.scandir(path) as listed:
            for entry in listed:
                with contextlib.suppress(FileNotFoundError):  # just deleted
                    found.append(Entry(entry.name, entry.stat().st_size if entry.is_file() else None))
        return found

    def delete_folder(self, path: str) -> None:
        """Delete a folder and all it holds, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def delete(self, path: str) -> None:
        """Delete a file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


class ArrowFiles:
    """A file system of pyarrow's."""

    is_local = False

    def __init__(self, filesystem: Any) -> None:
        self.filesystem = filesystem

    def make(self, path: str) -> None:
        """Make a folder, and those it lies in."""
        with in_plain_words():
            self.filesystem.create_dir(path, recursive=True)

    @contextlib.contextmanager
    def writing(self, path: str) -> Iterator[Any]:
        """Write the file: an object store shows nothing before the end."""
        with in_plain_words():
            self.filesystem.create_dir(os.path.dirname(path), recursive=True)
            with self.filesystem.open_output_stream(path) as stream:
                yield stream

    def read(self, path: str) -> bytes:
        """Return a file's bytes."""
        with in_plain_words(), self.filesystem.open_input_stream(path) as stream:
            data: bytes = stream.read()
            return data

    def read_at(self, path: str, size: int, offset: int) -> bytes:
        """Return up to so many bytes from a place in a file."""
        with in_plain_words(), self.filesystem.open_input_file(path) as file:
            data: bytes = file.read_at(size, offset)
            return data

    def size(self, path: str) -> int | None:
        """Return how many bytes a file has; None if there is none."""
        with in_plain_words():
            info = self.filesystem.get_file_info(path)
            return info.size if info.is_file else None

    def entries(self, path: str) -> list[Entry]:
        """Return what a folder holds."""
        from pyarrow import fs

        with in_plain_words():
            found = self.filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
            return [Entry(info.base_name, info.size if info.is_file else None) for info in found]

    def delete_folder(self, path: str) -> None:
        """Delete a folder and all it holds, if it is there."""
        with in_plain_words(), contextlib.suppress(FileNotFoundError):
            self.filesystem.delete_dir(path)

    def delete(self, path: str) -> None:
        """Delete a file, if it is there."""
        with in_plain_words(), contextlib.suppress(FileNotFoundError):
            self.filesystem.delete_file(path)


@contextlib.contextmanager
def in_plain_words() -> Iterator[None]:
    """Raise what pyarrow calls an error of its own as an `OSError`."""
    import pyarrow as pa

    try:
        yield
    except pa.ArrowException as error:
        if isinstance(error, OSError):
            raise
        raise OSError(str(error)) from error

"""A file system that pyarrow takes for a remote one: it counts what is written to it, and fails when it is told to."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs


class Far(fs.FileSystemHandler):
    """Whole objects in a folder: what is not closed is not there, and nothing can be appended to or moved."""

    def __init__(self, root: Path) -> None:
        self._root, self._local = root, fs.LocalFileSystem()
        self.written_bytes = 0
        self.fails: Callable[[str], bool] = lambda path: False
        """Whether an operation on a path fails now."""

    @property
    def filesystem(self) -> fs.PyFileSystem:
        return fs.PyFileSystem(self)

    def _at(self, path: str) -> str:
        if self.fails(path):
            raise OSError(5, f"the store does not answer for {path}")
        return str(self._root / path.strip("/"))

    def get_type_name(self) -> str:
        return "far"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        found = []
        for path in paths:
            info = self._local.get_file_info(self._at(path))
            found.append(fs.FileInfo(path, info.type, size=info.size))
        return found

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        base = Path(self._at(selector.base_dir))
        return (
            [] if not base.is_dir() else self.get_file_info([f"{selector.base_dir}/{p.name}" for p in base.iterdir()])
        )

    def create_dir(self, path: str, recursive: bool) -> None:
        Path(self._at(path)).mkdir(parents=True, exist_ok=True)

    def delete_dir(self, path: str) -> None:
        self._local.delete_dir(self._at(path))

    def delete_file(self, path: str) -> None:
        self._local.delete_file(self._at(path))

    def open_input_stream(self, path: str) -> Any:
        return pa.PythonFile(Path(self._at(path)).open("rb"), mode="r")

    open_input_file = open_input_stream

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        return pa.PythonFile(_Upload(self, path), mode="w")

    def _refused(self, *arguments: Any) -> Any:
        raise NotImplementedError("an object store has no such operation")

    delete_dir_contents = delete_root_dir_contents = move = copy_file = open_append_stream = _refused


class _Upload(io.BytesIO):
    """An object that appears when it is closed."""

    def __init__(self, far: Far, path: str) -> None:
        super().__init__()
        self._far, self._path = far, path

    def write(self, data: Any) -> int:
        self._far._at(self._path)
        return super().write(data)

    def close(self) -> None:
        if not self.closed:
            data = self.getvalue()
            self._far.written_bytes += len(data)
            target = Path(self._far._at(self._path))
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        super().close()

"""Files that grow where files cannot grow: an object store takes whole objects only, so what is appended to a local
file goes there in pieces, and whoever reads sees one file.

    events.jsonl            the file itself, where the folder is local
    events/000000000000000.jsonl
    events/000000000131204.jsonl    pieces of it elsewhere, each named by the place it begins at

Pieces hold whole lines. Only the last, while it is small, is ever written again, so that the bytes sent grow with the
file and not with its square.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from pyarrow import fs

from actors.storage.folder import Folder

SMALL_BYTES = 16 << 10
"""The last piece is written again, longer, until it has so many."""
_PAGE_BYTES = 1 << 20
_MAX_BYTES = 8 << 20


class Piece(NamedTuple):
    """A part of a file, and the place in the whole at which it begins and ends."""

    start: int
    end: int
    name: str


def pieces_of(folder: Folder, name: str) -> list[Piece]:
    """Return a file's pieces in order; one that is whole is one piece."""
    whole = folder.size(name)
    found = [] if whole is None else [(0, whole, name)]
    stem, _, suffix = name.partition(".")
    listed = folder.filesystem.get_file_info(fs.FileSelector(f"{folder.path}/{stem}", allow_not_found=True))
    for info in listed:
        place = info.base_name.removesuffix(f".{suffix}")
        if info.type == fs.FileType.File and place.isdecimal():
            found.append((int(place), int(place) + info.size, f"{stem}/{info.base_name}"))
    pieces = sorted(Piece(*piece) for piece in found)
    # One that was torn when its writer died ends where its successor begins.
    ends = [after.start for after in pieces[1:]] + [piece.end for piece in pieces[-1:]]
    return [piece._replace(end=min(piece.end, end)) for piece, end in zip(pieces, ends, strict=True)]


def size_of(folder: Folder, name: str) -> int:
    """Return how many bytes a file has over all its pieces."""
    pieces = pieces_of(folder, name)
    return pieces[-1].end if pieces else 0


def read_lines(folder: Folder, name: str, offset: int) -> tuple[list[bytes], int]:
    """Return whole lines from a place in a file, a page of them, and where they end."""
    lines: list[bytes] = []
    page_end = offset + _PAGE_BYTES
    for piece in pieces_of(folder, name):
        if piece.end <= offset or piece.start > offset:
            continue
        while offset < min(piece.end, page_end):
            found, end = _lines_in(folder, piece, offset)
            if end == offset:  # the last line is still being written
                return lines, offset
            lines += found
            offset = end
    return lines, offset


def _lines_in(folder: Folder, piece: Piece, offset: int) -> tuple[list[bytes], int]:
    page = _PAGE_BYTES
    with folder.filesystem.open_input_file(f"{folder.path}/{piece.name}") as file:
        while True:
            wanted = min(page, piece.end - offset)
            data: bytes = file.read_at(wanted, offset - piece.start)
            whole = data.rfind(b"\n") + 1
            if whole or len(data) < page:
                return data[:whole].splitlines(), offset + whole
            page *= 2  # one line longer than a page


class Uploaded:
    """A local file of whole lines whose growth is copied to a folder elsewhere."""

    def __init__(self, folder: Folder, name: str, path: Path) -> None:
        self._folder, self._path = folder, path
        self._stem, _, self._suffix = name.partition(".")
        self._start = self._sent = 0
        """Where the piece begins that is being written, and how much of the file is there."""
        self._fetch(name)

    def push(self) -> None:
        """Copy what has been appended since the last time."""
        size = self._path.stat().st_size
        while self._sent < size:
            with self._path.open("rb") as file:
                file.seek(self._start)
                data = file.read(min(size - self._start, _MAX_BYTES))
            data = data[: data.rfind(b"\n") + 1]
            if self._start + len(data) <= self._sent:
                return  # no whole line more
            self._folder.write(f"{self._stem}/{self._start:015d}.{self._suffix}", data)
            self._sent = self._start + len(data)
            if len(data) >= SMALL_BYTES:
                self._start = self._sent

    def cut(self, size: int) -> None:
        """Count on no more of the file than this: what came after was torn, and is gone."""
        self._start, self._sent = min(self._start, size), min(self._sent, size)

    def _fetch(self, name: str) -> None:
        """Continue a file that an earlier writer began."""
        with self._path.open("wb") as file:
            for piece in pieces_of(self._folder, name):
                file.write(self._folder.read(piece.name)[: piece.end - piece.start])
                is_small = piece.end - piece.start < SMALL_BYTES and piece.name != name
                self._start, self._sent = (piece.start if is_small else piece.end), piece.end

"""An exception as a person should see it: the line of their own code first, then what was raised, and no frames of
raysync, torch or Ray; the whole traceback is for the log.

    File "my_tasks.py", line 12, in loss
        return cross_entropy(model(x), y, weigth=1)
    TypeError: cross_entropy() got an unexpected keyword argument 'weigth'
    (7 frames of raysync and libraries are left out; the job's log has them)
"""

from __future__ import annotations

import linecache
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import NamedTuple

from raysync.errors import RaysyncError

_MAX_CHARS = 2000
"""Of a message; some hold a whole tensor."""
_MAX_CAUSES = 5
_ROOT = Path(__file__).resolve().parents[1]
_INTERNAL = tuple(f"{_ROOT / name}/" for name in ("raysync", "actors", "service", "tune_configs"))
_LIBRARIES = tuple(
    f"{Path(sysconfig.get_path(name)).resolve()}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_SITES = {"site-packages", "dist-packages"}
"""Folders of libraries in any environment: a job's own may inherit from another."""
_PACKED = "_ray_pkg_"
"""Where Ray unpacks a working_dir or a module: the folder's name begins so."""


class CodeLine(NamedTuple):
    """A line of code."""

    path: str
    line: int
    function: str
    source: str

    def __str__(self) -> str:
        where = f'File "{self.path}", line {self.line}' + (f", in {self.function}" if self.function else "")
        return where + (f"\n    {self.source}" if self.source else "")


def explain(error: BaseException, module: str = "", home: str = "") -> str:
    """Return what happened, beginning with the line of the user's own code that it happened in, if there is one.

    `module` is the user's, of which the code may be installed among the libraries; paths are told from `home`.
    """
    chain = _chain(error)
    place = next((found for link in chain if (found := _own_place(link, module, home))), None)
    if place is None and not isinstance(error, RaysyncError):
        place = _inner_place(chain[-1], home)  # where in raysync it is helps whoever reads it
    told = [str(place)] if place is not None else []
    told.append(_raised(error))
    told += [f"caused by {_raised(link)}" for link in chain[1:] if _message(link) not in _message(error)]
    hidden = sum(1 for link in chain for _ in traceback.walk_tb(link.__traceback__)) - (place is not None)
    if hidden > 0 and place is not None:
        told.append(f"({hidden} frames of raysync and libraries are left out; the job's log has them)")
    return "\n".join(told)


def where_is(frame: FrameType, module: str = "", home: str = "") -> str:
    """Return the line a running thread is at: of the user's own code the innermost, if it is in there."""
    places = list(_told_places(traceback.walk_stack(frame), home))[::-1]
    entered = next((index for index, found in enumerate(places) if _is_internal(found[0])), 0)
    own = [place for path, inside, place in places[entered:] if _is_own(path, inside, module)]
    return str((own or [found[2] for found in places])[-1])


def _chain(error: BaseException) -> list[BaseException]:
    """Return an exception and what led to it, the last one raised first."""
    chain = [error]
    while len(chain) <= _MAX_CAUSES:
        last = chain[-1]
        cause = last.__cause__ or (None if last.__suppress_context__ else last.__context__)
        if cause is None or cause in chain:
            break
        chain.append(cause)
    return chain


def _own_place(error: BaseException, module: str, home: str) -> CodeLine | None:
    """Return the innermost line of the user's code that an exception came through."""
    if isinstance(error, SyntaxError) and error.filename and _is_own(error.filename, "", module):
        source = (error.text or "").strip()
        return CodeLine(_told(error.filename, home), error.lineno or 0, "", source)
    places = list(_places(error.__traceback__, home))
    entered = next((index for index, found in enumerate(places) if _is_internal(found[0])), 0)
    own = [place for path, inside, place in places[entered:] if _is_own(path, inside, module)]  # not who called raysync
    return own[-1] if own else None


def _inner_place(error: BaseException, home: str) -> CodeLine | None:
    """Return the innermost line of raysync's that an exception came through; without one, the innermost of all."""
    places = list(_places(error.__traceback__, home))
    ours = [found for found in places if _is_internal(found[0])]
    return (ours or places)[-1][2] if places else None


def _places(trace: TracebackType | None, home: str) -> Iterator[tuple[str, str, CodeLine]]:
    """Yield file, module and place of every frame, the outermost first."""
    return _told_places(traceback.walk_tb(trace), home)


def _told_places(frames: Iterable[tuple[FrameType, int]], home: str) -> Iterator[tuple[str, str, CodeLine]]:
    for frame, line in frames:
        path, inside = frame.f_code.co_filename, str(frame.f_globals.get("__name__", ""))
        source = linecache.getline(path, line, frame.f_globals).strip()
        function = frame.f_code.co_name
        yield path, inside, CodeLine(_told(path, home), line, "" if function == "<module>" else function, source)


def _is_own(path: str, inside: str, module: str) -> bool:
    """Return whether a frame is of the user's code: not raysync's, and not a library's unless it is their module."""
    if path.startswith("<") or _is_internal(path):
        return False
    if module and inside.partition(".")[0] == module.partition(".")[0]:
        return True
    return not str(Path(path).resolve()).startswith(_LIBRARIES) and not _SITES & {*Path(path).parts}


def _is_internal(path: str) -> bool:
    return str(Path(path).resolve()).startswith(_INTERNAL)


def _told(path: str, home: str) -> str:
    """Return a path as the user knows it: from their working_dir, not from where Ray has put that."""
    for inside in (path.partition(f"/{_PACKED}")[2].partition("/")[2], _below(path, home)):
        if inside:
            return inside
    return path


def _below(path: str, home: str) -> str:
    return path.removeprefix(f"{home.rstrip('/')}/") if home and path.startswith(f"{home.rstrip('/')}/") else ""


def _raised(error: BaseException) -> str:
    """Return the line that names an exception, its message cut where it is very long, and its notes."""
    kind = type(error)
    is_plain = kind.__module__ in ("builtins", "__main__") or isinstance(error, RaysyncError)
    name = kind.__qualname__ if is_plain else f"{kind.__module__}.{kind.__qualname__}"
    text = _message(error)
    if len(text) > _MAX_CHARS:
        text = f"{text[:_MAX_CHARS]}... ({len(text) - _MAX_CHARS} characters more; the job's log has them)"
    notes = [str(note) for note in getattr(error, "__notes__", ())]
    return "\n".join([f"{name}: {text}" if text else name, *notes])


def _message(error: BaseException) -> str:
    try:
        return str(error.msg if isinstance(error, SyntaxError) else error)
    except Exception as failed:
        return f"(its message cannot be shown: {type(failed).__name__})"

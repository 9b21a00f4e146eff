"""Which job a person means by the beginning of its id, and where a download goes on."""

from __future__ import annotations

import re
from collections.abc import Sequence

from raysync.errors import RaysyncError

_PREFIX = re.compile(r"[a-z0-9._-]{1,100}")


class NoSuchJob(RaysyncError, LookupError):
    """No job, or more than one, has an id that begins so."""

    def __init__(self, text: str, found: tuple[str, ...]) -> None:
        super().__init__(text, found)
        self.text, self.found = text, found

    def __str__(self) -> str:
        if not self.found:
            return f"there is no job {self.text!r}; `raysync list` shows them"
        return f"{self.text!r} may be {', '.join(self.found)}: give more of the id"


def is_prefix(text: str) -> bool:
    """Return whether an id may begin so."""
    return _PREFIX.fullmatch(text) is not None


def is_whole(text: str) -> bool:
    """Return whether a text looks like a whole id."""
    return re.fullmatch(r".+-[0-9a-f]{8}", text) is not None


def found_id(text: str, ids: Sequence[str]) -> str:
    """Return the one that is meant, given those it may be; raise if it is none or not one."""
    if text in ids or len(ids) == 1:
        return text if text in ids else ids[0]
    raise NoSuchJob(text, tuple(ids))


def range_of(done: int) -> dict[str, str]:
    """Return the header that asks for the rest of a file of which so many bytes are there."""
    return {"Range": f"bytes={done}-"} if done else {}

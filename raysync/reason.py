"""Reasons in one line: of a traceback who raised it and what it says, and nothing longer than a list has room for."""

from __future__ import annotations

import re

MAX_SHORT = 300
_PLACE = re.compile(r'(?P<who>.*?)File "(?P<path>[^"]+)", line (?P<line>\d+)(, in .+)?')
"""How `raysync.failure` begins."""


def headline(reason: str) -> str:
    """Return a reason in one line: of an exception who raised it, what and where; of a traceback its last line."""
    first, *rest = reason.strip().splitlines() or [""]
    if place := _PLACE.fullmatch(first):
        raised = next((line for line in rest if not line.startswith("    ")), "")
        return f"{place['who']}{raised} ({place['path']}, line {place['line']})"
    return _last_line(reason)


def _last_line(reason: str) -> str:
    who, found, rest = reason.strip().partition("Traceback (most recent call last)")
    if found:
        return f"{' '.join(who.split())} {rest.strip().splitlines()[-1].strip()}".strip()
    return who.splitlines()[0] if who else ""


def shortened(reason: str, limit: int = MAX_SHORT) -> str:
    """Return the headline of a reason, cut off where it is longer than `limit`."""
    line = headline(reason)
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
